"""The optimiser, its parameter groups, learning rates and gradients by progress; gradients in chunks."""

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
    """Return the optimiser of the settings, with a group for each learning-rate factor and time of freezing.

    One with a method `sort`, as Muon has, gets groups of one sort of weights each. Parameters of factor 0 are frozen
    for good.

    Raises:
        InputError: a prefix that no parameter has, nothing to train, or an unknown optimiser.
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
        sort: the kind of a parameter, by which groups are split, too.

    Raises:
        InputError: a prefix that no parameter has, or nothing to train.
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

    It is 1 before the warm-up, which begins at the first step that `warmup_start` epochs leave out; the first of its
    N steps takes 1 / N, the last one 1. The schedule multiplies that.
    """
    warmed, steps = step - optim.warmup_start * epoch_steps, warmup_steps(optim, epoch_steps=epoch_steps)
    warmup = min(1.0, (warmed + 1) / steps) if steps and warmed >= 0 else 1.0
    if optim.schedule == "step":
        return warmup * optim.decay ** sum(step >= milestone * epoch_steps for milestone in optim.milestones)
    if optim.schedule == "cosine":
        return warmup * (1 + math.cos(math.pi * step / (optim.epochs * epoch_steps))) / 2
    return warmup


def warmup_steps(optim: Optim, *, epoch_steps: int) -> int:
    """Return the steps of the warm-up: a tenth of the training where the setting asks for more than a fifth."""
    whole = optim.epochs * epoch_steps
    return optim.warmup_steps if 5 * optim.warmup_steps <= whole else whole // 10


def set_lr(optimizer: torch.optim.Optimizer, optim: Optim, scale: float) -> None:
    """Set every group's learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = optim.lr * group["factor"] * scale


def ready_gradients(optimizer: torch.optim.Optimizer, optim: Optim, *, step: int, epoch_steps: int) -> Tensor:
    """Drop gradients of parameters that are still frozen, clip the others by their joint norm, and return that norm.

    Without a gradient, an optimiser leaves a parameter, its decay and its moments alone. `requires_grad` stays set, as
    DDP must know all gradients from the start.

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


def chunked_gradients(
    adapter: Chunked,
    model: nn.Module,
    batch: Batch,
    *,
    epoch: float,
    chunk: int,
    precision: AbstractContextManager,
) -> dict[str, Tensor]:
    """Add the gradient of a batch to the parameters', averaged over workers; return the terms of `TaskAdapter.loss`.

    Args:
        adapter: of the task.
        model: not wrapped in DDP, which would average after every pass.
        batch: this worker's share.
        epoch: epochs trained so far.
        chunk: samples of this worker that pass at once.
        precision: in which to compute.
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
