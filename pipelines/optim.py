"""The optimiser, its parameter groups, and the learning rate as a function of progress."""

from __future__ import annotations

import math

import torch
from torch import nn

from infra.errors import InputError, unknown
from pipelines.config import Optim


def make_optimizer(model: nn.Module, optim: Optim) -> torch.optim.AdamW:
    """Return AdamW with one group per learning-rate factor; parameters of factor 0 are frozen.

    Raises:
        InputError: a prefix that no parameter has.
    """
    names = [name for name, _ in model.named_parameters()]
    for prefix, _ in optim.lr_factors:
        if not any(name.startswith(prefix) for name in names):
            raise unknown("prefix in lr_factors:", prefix, {name.rsplit(".", 1)[0] for name in names})
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        fitting = [(len(prefix), factor) for prefix, factor in optim.lr_factors if name.startswith(prefix)]
        factor = max(fitting)[1] if fitting else 1.0
        if factor == 0:
            parameter.requires_grad_(False)
        else:
            groups.setdefault(factor, []).append(parameter)
    if not groups:
        raise InputError("every parameter is frozen by lr_factors; there is nothing to train")
    return torch.optim.AdamW(
        [{"params": parameters, "lr": optim.lr, "factor": factor} for factor, parameters in groups.items()],
        weight_decay=optim.weight_decay,
        fused=True,
    )


def lr_scale(optim: Optim, *, step: int, epoch_steps: int) -> float:
    """Return the factor on every learning rate at a step, counted from 0."""
    warmup = min(1.0, (step + 1) / optim.warmup_steps) if optim.warmup_steps else 1.0
    if optim.schedule == "step":
        return warmup * optim.decay ** sum(step >= milestone * epoch_steps for milestone in optim.milestones)
    if optim.schedule == "cosine":
        return warmup * (1 + math.cos(math.pi * step / (optim.epochs * epoch_steps))) / 2
    return warmup


def set_lr(optimizer: torch.optim.Optimizer, optim: Optim, scale: float) -> None:
    """Set every group's learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = optim.lr * group["factor"] * scale
