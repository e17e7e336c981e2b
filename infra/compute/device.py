"""Devices, the transfer of batches to them, and whether code is being compiled for one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def best_device() -> torch.device:
    """Return the GPU where there is one, else the CPU.

    On a GPU it also turns off TF32 in cuDNN, so that convolutions and recurrent networks in float32 are computed in
    float32, as torch computes matrix products. With TF32, features of an I3D differed from a CPU's by up to 0.02.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.backends.cudnn.allow_tf32 = False
    return torch.device("cuda")


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
    """Return a batch with its tensors on a device."""
    return {name: x.to(device) for name, x in batch.items()}


def traced() -> bool:
    """Return whether code is compiled, exported or inside a transform of `torch.func`, so that no value is known."""
    # no public function tells of a transform
    return torch.compiler.is_compiling() or torch._C._functorch.maybe_current_level() is not None


def shapes_only(x: Tensor) -> bool:
    """Return whether code may depend on the shape of `x`, and not on its values.

    True where code is traced, and on every device but the CPU: reading a value there makes the host wait for the
    device, and cannot be captured in a CUDA graph.
    """
    return x.device.type != "cpu" or traced()
