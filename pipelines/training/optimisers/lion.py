"""Lion (Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023, algorithm 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from polypool.infra.errors import InputError
from polypool.infra.registry import OPTIMISERS
from polypool.pipelines.training.optimisers.base import Plain


@OPTIMISERS.register("lion")
class Lion(Plain):
    """Steps by the sign of `beta1 * momentum + (1 - beta1) * gradient`, then `beta2` moves the momentum.

    Every weight moves by the learning rate, whatever its gradient: the paper takes a rate 3 to 10 times smaller than
    AdamW's, and a decay as much larger, since what decays is the weight times both.

    Args:
        params: weights, or groups of them.
        lr: learning rate.
        weight_decay: taken off every weight, times the learning rate.
        beta1: share of the momentum in the step.
        beta2: share of the momentum that stays.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        weight_decay: float,
        beta1: float = 0.9,
        beta2: float = 0.99,
    ) -> None:
        for name, beta in (("beta1", beta1), ("beta2", beta2)):
            if not 0 <= beta < 1:
                raise InputError(f"{name} must be at least 0 and below 1, not {beta}")
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "beta1": beta1, "beta2": beta2})

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Change the weights that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
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
            torch._foreach_add_(weights, steps, alpha=-group["lr"])
            torch._foreach_lerp_(momenta, gradients, 1 - group["beta2"])
        return loss
