"""Which device to compute on, and batches on it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def best_device() -> torch.device:
    """Return the GPU where this process sees one, the CPU elsewhere."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model's first parameter; the CPU where it has none."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def on_device(batch: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Return a batch with every tensor on a device; those that are there already are not copied."""
    return {name: x.to(device) for name, x in batch.items()}
