"""Device selection, transfer of batches, and detection of tracing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def best_device() -> torch.device:
    """Return the GPU if one is available, otherwise the CPU.

    On a GPU this also disables TF32 in cuDNN, so that float32 convolutions and recurrent networks are computed in
    float32, as torch's matrix products are. With TF32, I3D features differed from a CPU's by up to 0.02.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.backends.cudnn.allow_tf32 = False
    return torch.device("cuda")


def computes_bfloat16(device: torch.device) -> bool:
    """Whether a device supports bfloat16 in hardware.

    In hardware it takes half the time of float32; emulated, four times as long on one processor.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = getattr(torch.cpu, "get_capabilities", None)  # older versions of torch cannot tell
    return capabilities is None or any(
        capabilities().get(name) for name in ("avx512_bf16", "amx_bf16", "bf16")
    )


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model's first parameter; the CPU if it has none."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def on_device(batch: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Return a batch with its tensors on a device."""
    return {name: x.to(device) for name, x in batch.items()}


def free_memory(device: torch.device) -> int:
    """Return the bytes of a GPU's memory that are free, or cached by torch, as from an earlier run of this process."""
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + cached


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Run on a new stream of a GPU: its default stream cannot be captured, and streams of threads overlap."""
    if device.type != "cuda":
        yield
        return
    before, stream = torch.cuda.current_stream(), torch.cuda.Stream()
    stream.wait_stream(before)
    with torch.cuda.stream(stream):
        yield
    before.wait_stream(stream)


def traced() -> bool:
    """Whether the code is compiled, exported or inside a `torch.func` transform, so that values are not available."""
    # no public function detects a transform
    return torch.compiler.is_compiling() or torch._C._functorch.maybe_current_level() is not None


def shapes_only(x: Tensor) -> bool:
    """Whether code may depend on the shape of `x`, but not on its values.

    True under tracing, and on every device but the CPU: reading a value would synchronise with the device, and cannot
    be captured in a CUDA graph.
    """
    return x.device.type != "cpu" or traced()
