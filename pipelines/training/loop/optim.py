"""The optimiser, its parameter groups, learning rates and freezing by progress; gradients in chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from polypool.infra.batches import Batch
from polypool.infra.compute.dist import average_gradients
from polypool.infra.errors import InputError, unknown
from polypool.infra.registry import OPTIMISERS
from polypool.tasks.abilities import Chunked
from polypool.tasks.run import Optim


def make_optimizer(model: nn.Module, optim: Optim) -> torch.optim.Optimizer:
    """Return the optimiser, with a group for each combination of learning rate factor and freezing time.

    An optimiser with a method `sort`, such as Muon, gets groups with one sort of weights each. Parameters with factor 0
    are frozen permanently.

    Raises:
        InputError: a prefix that matches no parameter, no trainable parameter, or an unknown optimiser.
    """
    return OPTIMISERS.build(
        optim.optimiser,
        parameter_groups(model, optim, sort=getattr(OPTIMISERS.part(optim.optimiser), "sort", None)),
        lr=optim.lr,
        weight_decay=optim.weight_decay,
    )


def parameter_groups(
    model: nn.Module, optim: Optim, *, sort: Callable[[nn.Module, nn.Parameter], str] | None = None
) -> list[dict[str, Any]]:
    """Return groups of the trained parameters with `lr`, `factor` and `frozen_epochs`; freeze the others.

    Args:
        model: of the run.
        optim: its settings.
        sort: returns the sort of a parameter, which also splits groups.

    Raises:
        InputError: a prefix that matches no parameter, or no trainable parameter.
    """
    names = [name for name, _ in model.named_parameters()]
    for setting in ("lr_factors", "freeze"):
        for prefix, _ in getattr(optim, setting):
            if not any(name.startswith(prefix) for name in names):
                raise unknown(f"prefix in {setting}:", prefix, {name.rsplit(".", 1)[0] for name in names})
    groups: dict[tuple[float, float, str], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        factor = longest_prefix(optim.lr_factors, name, default=1.0)
        if factor == 0:
            parameter.requires_grad_(False)
            continue
        own = sort(model.get_submodule(name.rpartition(".")[0]), parameter) if sort else ""
        key = factor, longest_prefix(optim.freeze, name, default=0.0), own
        groups.setdefault(key, []).append(parameter)
    if not groups:
        raise InputError("every parameter is frozen by lr_factors; there is nothing to train")
    return [
        {"params": parameters, "lr": optim.lr, "factor": factor, "frozen_epochs": epochs}
        | ({"sort": own} if sort else {})
        for (factor, epochs, own), parameters in groups.items()
    ]


def longest_prefix(pairs: Iterable[tuple[str, float]], name: str, *, default: float) -> float:
    """Return the value of the longest matching prefix."""
    fitting = [(len(prefix), value) for prefix, value in pairs if name.startswith(prefix)]
    return max(fitting)[1] if fitting else default


def lr_scale(optim: Optim, *, step: int, epoch_steps: int) -> float:
    """Return the factor on every learning rate at a step, counted from 0.

    It is the product of the schedule's factor and the warm-up's. The warm-up starts after `warmup_start` epochs: its
    factor is 1 before, then rises from 1 / N to 1 in N steps.
    """
    warmed, steps = step - optim.warmup_start * epoch_steps, warmup_steps(optim, epoch_steps=epoch_steps)
    warmup = min(1.0, (warmed + 1) / steps) if steps and warmed >= 0 else 1.0
    if optim.schedule == "step":
        return warmup * optim.decay ** sum(step >= milestone * epoch_steps for milestone in optim.milestones)
    if optim.schedule == "cosine":
        return warmup * (1 + math.cos(math.pi * step / (optim.epochs * epoch_steps))) / 2
    return warmup


def warmup_steps(optim: Optim, *, epoch_steps: int) -> int:
    """Return the steps of the warm-up: a tenth of the training if the setting exceeds a fifth."""
    whole = optim.epochs * epoch_steps
    return optim.warmup_steps if 5 * optim.warmup_steps <= whole else whole // 10


def set_lr(optimizer: torch.optim.Optimizer, optim: Optim, scale: float) -> None:
    """Set the learning rate of every group."""
    for group in optimizer.param_groups:
        lr = optim.lr * group["factor"] * scale
        if isinstance(group["lr"], Tensor):  # read by a CUDA graph
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def ready_gradients(optimizer: torch.optim.Optimizer, optim: Optim, *, step: int, epoch_steps: int) -> Tensor:
    """Drop gradients of parameters that are still frozen, clip the others by their joint norm, and return this norm.

    Without a gradient, an optimiser does not change a parameter or its moments. `requires_grad` remains set, because
    DDP must know all gradients from the start.

    Args:
        optimizer: from `make_optimizer`; its parameters have their gradients, averaged over workers.
        optim: settings.
        step: counted from 0.
        epoch_steps: steps of an epoch.
    """
    for group in frozen_groups(optimizer, step=step, epoch_steps=epoch_steps):
        for parameter in group["params"]:
            parameter.grad = None
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return nn.utils.clip_grad_norm_(parameters, optim.clip or math.inf)


def frozen_groups(optimizer: torch.optim.Optimizer, *, step: int, epoch_steps: int) -> list[dict[str, Any]]:
    """Return the parameter groups that are frozen at a step."""
    return [group for group in optimizer.param_groups if step < group["frozen_epochs"] * epoch_steps]


def chunked_gradients(
    adapter: Chunked,
    model: nn.Module,
    batch: Batch,
    *,
    epoch: float,
    chunk: int,
    precision: AbstractContextManager,
) -> dict[str, Tensor]:
    """Accumulate the gradient of a batch in chunks, averaged over workers; return the terms of `TaskAdapter.loss`.

    Args:
        adapter: of the task.
        model: not wrapped in DDP, which would average after every chunk.
        batch: this worker's share.
        epoch: epochs trained so far.
        chunk: samples of this worker per forward pass.
        precision: context of the computation.
    """
    terms: dict[str, Tensor] = {}
    passes = adapter.passes(model, batch, epoch=epoch, chunk=chunk)
    while True:
        with precision:
            each = next(passes, None)
        if each is None:
            break
        each.loss.backward()
        for name, value in each.terms.items():
            terms[name] = terms.get(name, 0.0) + value.detach()
    average_gradients(p for p in model.parameters() if p.requires_grad)
    return terms
