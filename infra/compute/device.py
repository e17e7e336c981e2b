"""Which device to compute on, and batches on it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def best_device() -> torch.device:
    """Return the GPU where this process sees one, the CPU elsewhere."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def computes_bfloat16(device: torch.device) -> bool:
    """Whether a device has bfloat16 in hardware.

    There it takes half the time of float32; elsewhere it is emulated, and took four times as long on one processor.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = getattr(torch.cpu, "get_capabilities", None)  # older versions of torch cannot tell
    return capabilities is None or any(
        capabilities().get(name) for name in ("avx512_bf16", "amx_bf16", "bf16")
    )


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model's first parameter; the CPU where it has none."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def on_device(batch: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Return a batch with every tensor on a device; those that are there already are not copied."""
    return {name: x.to(device) for name, x in batch.items()}
