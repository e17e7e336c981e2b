"""The optimiser, its parameter groups, and what a step does to rates and gradients as a function of progress."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from infra.errors import InputError, unknown
from infra.registry import OPTIMISERS, Spec
from pipelines.training.optimisers.base import Sorts
from tasks.run import Optim


def make_optimizer(model: nn.Module, optim: Optim) -> torch.optim.Optimizer:
    """Return the optimiser that the settings name, with one group for each learning-rate factor and time of freezing.

    One that `Sorts` weights is given groups of one sort each. Parameters of factor 0 are frozen for good.

    Raises:
        InputError: a prefix that no parameter has, nothing to train, or an optimiser that there is not.
    """
    kind = OPTIMISERS.get(Spec.parse(optim.optimiser).name)
    sort = kind.sort if isinstance(kind, Sorts) else None
    return OPTIMISERS.build(
        optim.optimiser,
        parameter_groups(model, optim, sort=sort),
        lr=optim.lr,
        weight_decay=optim.weight_decay,
    )


def parameter_groups(
    model: nn.Module, optim: Optim, *, sort: Callable[[nn.Module, nn.Parameter], str] | None = None
) -> list[dict[str, Any]]:
    """Return groups of the parameters that are trained, with their `lr`, `factor` and `frozen_epochs`; others freeze.

    Args:
        model: of the run.
        optim: its settings.
        sort: tells parameters apart, of which then each group has one `sort`.

    Raises:
        InputError: a prefix that no parameter has, or nothing to train.
    """
    names = [name for name, _ in model.named_parameters()]
    for setting in ("lr_factors", "freeze"):
        _check(setting, getattr(optim, setting), names)
    groups: dict[tuple[float, float, str], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        factor = _longest(optim.lr_factors, name, default=1.0)
        if factor == 0:
            parameter.requires_grad_(False)
            continue
        own = sort(model.get_submodule(name.rpartition(".")[0]), parameter) if sort else ""
        key = factor, _longest(optim.freeze, name, default=0.0), own
        groups.setdefault(key, []).append(parameter)
    if not groups:
        raise InputError("every parameter is frozen by lr_factors; there is nothing to train")
    return [
        {"params": parameters, "lr": optim.lr, "factor": factor, "frozen_epochs": epochs}
        | ({"sort": own} if sort else {})
        for (factor, epochs, own), parameters in groups.items()
    ]


def _check(setting: str, pairs: Iterable[tuple[str, float]], names: Sequence[str]) -> None:
    for prefix, _ in pairs:
        if not any(name.startswith(prefix) for name in names):
            raise unknown(f"prefix in {setting}:", prefix, {name.rsplit(".", 1)[0] for name in names})


def _longest(pairs: Iterable[tuple[str, float]], name: str, *, default: float) -> float:
    """Return the value of the longest prefix that fits a name."""
    fitting = [(len(prefix), value) for prefix, value in pairs if name.startswith(prefix)]
    return max(fitting)[1] if fitting else default


def lr_scale(optim: Optim, *, step: int, epoch_steps: int) -> float:
    """Return the factor on every learning rate at a step, counted from 0.

    It is 1 before the warm-up, which begins at the first step that `warmup_start` epochs leave out; the first step of
    the warm-up takes 1 / `warmup_steps`, the last one 1. What the schedule takes away comes on top.
    """
    warmed = step - optim.warmup_start * epoch_steps
    warmup = min(1.0, (warmed + 1) / optim.warmup_steps) if optim.warmup_steps and warmed >= 0 else 1.0
    if optim.schedule == "step":
        return warmup * optim.decay ** sum(step >= milestone * epoch_steps for milestone in optim.milestones)
    if optim.schedule == "cosine":
        return warmup * (1 + math.cos(math.pi * step / (optim.epochs * epoch_steps))) / 2
    return warmup


def set_lr(optimizer: torch.optim.Optimizer, optim: Optim, scale: float) -> None:
    """Set every group's learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = optim.lr * group["factor"] * scale


def ready_gradients(optimizer: torch.optim.Optimizer, optim: Optim, *, step: int, epoch_steps: int) -> Tensor:
    """Forget the gradients of what is still frozen, clip all others as one, and return their norm before that.

    Without a gradient, an optimiser leaves a parameter, its decay and its moments alone, exactly as if it did not need
    one; but it goes on needing one, because DDP must know from the start which gradients there will be.

    Args:
        optimizer: made by `make_optimizer`; its parameters have their gradients, averaged over workers.
        optim: settings.
        step: counted from 0.
        epoch_steps: steps of an epoch.
    """
    for group in optimizer.param_groups:
        if step < group["frozen_epochs"] * epoch_steps:
            for parameter in group["params"]:
                parameter.grad = None
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return nn.utils.clip_grad_norm_(parameters, optim.clip or math.inf)
