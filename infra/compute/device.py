"""Devices, the transfer of batches to them, and whether code is being compiled for one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def computes_bfloat16(device: torch.device) -> bool:
    """Whether a device has bfloat16 in hardware.

    There it takes half the time of float32; emulated, it took four times as long on one processor.
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
    return {name: x.to(device) for name, x in batch.items()}


def traced() -> bool:
    """Whether the code is traced, so that values are unknown, and all that depends on them must be in the graph."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()
