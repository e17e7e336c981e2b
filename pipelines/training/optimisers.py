"""Optimisers by spec: AdamW, SGD, Lion and Muon, without importing torch's compiler."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from polypool.infra.errors import InputError
from polypool.infra.fields import Rule, one_of, require
from polypool.infra.registry import OPTIMISERS

_FRACTION = Rule("at least 0 and below 1", lambda value: 0 <= value < 1)


class Plain(torch.optim.Optimizer):
    """An optimiser without the compiler wrappers of torch's methods, whose import takes two seconds.

    Subclasses of torch's optimisers derive from this class first, and unwrap torch's `step`.
    """

    capturable = False
    """Whether `lr` may be a tensor on the device, so that a CUDA graph of the step reads it."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)


@OPTIMISERS.register("adamw")
class AdamW(Plain, torch.optim.AdamW):
    """torch's AdamW; without weight decay it is Adam.

    Args:
        params: weights, or groups of them.
        lr: learning rate.
        weight_decay: decoupled weight decay, multiplied by the learning rate.
        beta1: decay rate of the first moment.
        beta2: decay rate of the second moment.
        eps: added to the root of the second moment.
        amsgrad: divide by the maximum second moment so far (Reddi et al. 2018), as PVSE does.
    """

    capturable = True
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        weight_decay: float,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            weight_decay=weight_decay,
            betas=(beta1, beta2),
            eps=eps,
            amsgrad=amsgrad,
            fused=True,
        )


@OPTIMISERS.register("sgd")
class SGD(Plain, torch.optim.SGD):
    """torch's SGD; its weight decay is added to the gradient, and thus to the momentum.

    Args:
        params: weights, or groups of them.
        lr: learning rate.
        weight_decay: coefficient of the weights in the gradient.
        momentum: momentum coefficient.
        nesterov: use Nesterov momentum.
    """

    step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        weight_decay: float,
        momentum: float = 0.9,
        nesterov: bool = False,
    ) -> None:
        # not fused: torch's kernel cannot add a weight whose gradient appears later than the others'
        super().__init__(params, lr=lr, weight_decay=weight_decay, momentum=momentum, nesterov=nesterov)


@OPTIMISERS.register("lion")
class Lion(Plain):
    """Updates by the sign of `beta1 * momentum + (1 - beta1) * gradient`; `beta2` is the decay rate of the momentum.

    Every weight changes by the learning rate, whatever its gradient's magnitude: the paper (Chen et al., "Symbolic
    discovery of optimization algorithms", NeurIPS 2023) uses a learning rate 3 to 10 times smaller than AdamW's, and a
    weight decay larger by the same factor, because the effective decay is their product.

    Args:
        params: weights, or groups of them.
        lr: learning rate.
        weight_decay: decoupled weight decay, multiplied by the learning rate.
        beta1: share of the momentum in the update.
        beta2: decay rate of the momentum.

    Raises:
        InputError: `beta1` or `beta2` is outside [0, 1).
    """

    capturable = True

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        weight_decay: float,
        beta1: float = 0.9,
        beta2: float = 0.99,
    ) -> None:
        require(_FRACTION, beta1=beta1, beta2=beta2)
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "beta1": beta1, "beta2": beta2})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if not weights:
                continue
            for weight in weights:
                if not self.state[weight]:
                    self.state[weight]["momentum"] = torch.zeros_like(weight)
            momenta, gradients = [self.state[w]["momentum"] for w in weights], [w.grad for w in weights]
            steps = torch._foreach_lerp(momenta, gradients, 1 - group["beta1"])
            torch._foreach_sign_(steps)
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_mul_(steps, -group["lr"])
            torch._foreach_add_(weights, steps)
            torch._foreach_lerp_(momenta, gradients, 1 - group["beta2"])


@OPTIMISERS.register("muon")
class Muon(Plain):
    """torch's Muon (Jordan et al. 2024; Liu et al. 2025) for matrices; AdamW for all other weights.

    Other weights are vectors, convolution kernels, and word embedding tables.

    Both use the run's weight decay and its learning rate, times the factor of each group. With `rate=match_rms_adamw` a
    step of Muon has the size of an AdamW step, so AdamW's learning rates apply; with `rate=original` about 20 to 50
    times that rate is needed. A stacked matrix, as of a GRU's gates, is one matrix. Matrix updates are computed in
    bfloat16.

    Args:
        params: groups of weights, each of one `sort`.
        lr: learning rate.
        weight_decay: decoupled weight decay, multiplied by the learning rate.
        momentum: momentum coefficient of matrices.
        nesterov: use Nesterov momentum.
        iterations: Newton-Schulz iterations toward the nearest orthogonal matrix.
        rate: factor of a matrix's learning rate by its shape (a, b): `match_rms_adamw`, 0.2 sqrt(max(a, b)), or
            `original`, sqrt(max(1, a / b)).
        beta1: of AdamW.
        beta2: of AdamW.

    Raises:
        InputError: `rate`, `momentum` or `iterations` has an invalid value, or torch is older than 2.9 and lacks Muon.
    """

    def __init__(
        self,
        params: Iterable[Mapping[str, Any]],
        *,
        lr: float,
        weight_decay: float,
        momentum: float = 0.95,
        nesterov: bool = True,
        iterations: int = 5,
        rate: str = "match_rms_adamw",
        beta1: float = 0.9,
        beta2: float = 0.999,
    ) -> None:
        if not hasattr(torch.optim, "Muon"):
            raise InputError(f"muon needs torch 2.9 or newer, not {torch.__version__}; choose adamw or lion")
        require(one_of("match_rms_adamw", "original"), rate=rate)
        require(_FRACTION, momentum=momentum)
        require(Rule("from 1 to 99", lambda count: 1 <= count < 100), iterations=iterations)
        groups = [dict(group) for group in params]
        own = [group for group in groups if group["sort"] == "matrix"]
        others = [group for group in groups if group["sort"] != "matrix"]
        common: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
        self._parts: list[torch.optim.Optimizer] = []
        if own:
            kind = torch.optim.Muon
            bare = {"step": torch.no_grad()(inspect.unwrap(kind.step)), "__doc__": kind.__doc__}
            more = {"momentum": momentum, "nesterov": nesterov, "ns_steps": iterations, "adjust_lr_fn": rate}
            self._parts.append(type("Matrices", (Plain, kind), bare)(own, **common, **more))
        if others:
            self._parts.append(AdamW(others, **common, beta1=beta1, beta2=beta2))
        super().__init__([group for part in self._parts for group in part.param_groups], common)
        self._share()

    @staticmethod
    def sort(module: nn.Module, weight: nn.Parameter) -> str:
        """Return `matrix` for weights trained by Muon, otherwise `other`, as for word embedding tables."""
        table = isinstance(module, nn.Embedding | nn.EmbeddingBag)
        return "matrix" if weight.ndim == 2 and not table else "other"

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of both optimisers."""
        super().load_state_dict(state_dict)
        self._share()

    def step(self) -> None:
        for part in self._parts:
            part.step()

    def _share(self) -> None:
        """Make both optimisers use this one's state and their part of its groups."""
        start = 0
        for part in self._parts:
            end = start + len(part.param_groups)
            part.param_groups, part.state, start = self.param_groups[start:end], self.state, end
