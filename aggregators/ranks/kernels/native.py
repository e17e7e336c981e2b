"""The sorted weighted sum on the CPU: a small C file, built with the machine's own compiler when first needed."""

from __future__ import annotations

import ctypes
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

SOURCE = Path(__file__).with_name("sorted_sum.c")
TYPES = {torch.float32: ("float", "int32_t"), torch.float64: ("double", "int64_t")}
FLAGS = (
    ("-fopenmp", "-march=native", "-mprefer-vector-width=512"),
    ("-fopenmp", "-mcpu=native"),
    ("-fopenmp",),
    (),
)
"""What makes the code fast, on x86 and elsewhere; the first that the compiler takes is used."""
SMALL = 1 << 16
"""Elements below which one thread is enough."""


@lru_cache
def library(dtype: torch.dtype) -> ctypes.CDLL | None:
    """Build the functions for float32 or float64, once in a process; None where that cannot be done."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if dtype not in TYPES or not compiler or not shutil.which(compiler[0]):
        return None
    real, integer = TYPES[dtype]
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "sorted_sum.so"
        fixed = [
            "-O3",
            "-shared",
            "-fPIC",
            f"-DREAL={real}",
            f"-DINT={integer}",
            str(SOURCE),
            "-o",
            str(built),
        ]
        for flags in FLAGS:
            if subprocess.run([*compiler, *flags, *fixed], capture_output=True).returncode == 0:
                break
        try:
            loaded = ctypes.CDLL(str(built))
        except OSError as error:
            logging.getLogger(__name__).info("sorting without compiled code: %s", error)
            return None
    pointer, count = ctypes.c_void_p, ctypes.c_long
    common, last = [*[pointer] * 4, *[count] * 3], [count, count, ctypes.c_int]
    loaded.weighted_sum.argtypes = [*common, pointer, *last]
    loaded.gradients.argtypes = [*common, *[pointer] * 3, *last]
    return loaded


class SortedSum(torch.autograd.Function):
    """`(x_BND, weight_BNC, mask_BN)` -> `(B, D)`: C is D, or 1 for weights that all channels share.

    Nothing but the inputs is kept for the way back, which sorts again.
    """

    @staticmethod
    def forward(ctx: Any, x_BND: Tensor, weight_BNC: Tensor, mask_BN: Tensor) -> Tensor:
        """Sum on as many threads as torch uses."""
        x_BND, weight_BNC = x_BND.contiguous(), weight_BNC.contiguous()
        out_BD = torch.empty_like(x_BND[:, 0])
        _call("weighted_sum", x_BND, mask_BN, weight_BNC, out_BD)
        ctx.save_for_backward(x_BND, weight_BNC, mask_BN)
        return out_BD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BD: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of elements and weights; at ties any of the equal elements may get one's weight."""
        x_BND, weight_BNC, mask_BN = ctx.saved_tensors
        for_x, for_weight, _ = ctx.needs_input_grad
        grad_x_BND = _zero_in_pads(x_BND, mask_BN) if for_x else None
        grad_weight_BNC = torch.zeros_like(weight_BNC) if for_weight else None
        _call("gradients", x_BND, mask_BN, weight_BNC, grad_BD.contiguous(), grad_x_BND, grad_weight_BNC)
        return grad_x_BND, grad_weight_BNC, None


class SortDescending(torch.autograd.Function):
    """`(x_BND, mask_BN)` -> `(B, N, D)`: sorted values, then zeros.

    They are the gradient of a sum's weights, and their own gradients are weights; so the two share everything.
    """

    @staticmethod
    def forward(ctx: Any, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Sort on as many threads as torch uses."""
        x_BND = x_BND.contiguous()
        sorted_BND = torch.zeros_like(x_BND)
        _call("gradients", x_BND, mask_BN, sorted_BND, torch.ones_like(x_BND[:, 0]), None, sorted_BND)
        ctx.save_for_backward(x_BND, mask_BN)
        return sorted_BND

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BND: Tensor) -> tuple[Tensor, None]:
        """Return every value's gradient to where it came from."""
        x_BND, mask_BN = ctx.saved_tensors
        grad_x_BND, ones_BD = _zero_in_pads(x_BND, mask_BN), torch.ones_like(x_BND[:, 0])
        _call("gradients", x_BND, mask_BN, grad_BND.contiguous(), ones_BD, grad_x_BND, None)
        return grad_x_BND, None


def _zero_in_pads(x_BND: Tensor, mask_BN: Tensor) -> Tensor:
    """Return memory for the gradient of the elements, which is zero where there is none."""
    grad_BND = torch.empty_like(x_BND)
    grad_BND[~mask_BN] = 0.0
    return grad_BND


def _call(name: str, x_BND: Tensor, mask_BN: Tensor, weight_BNC: Tensor, *more: Tensor | None) -> None:
    """Call a function of the library for all sets; `ctypes` lets go of the interpreter meanwhile."""
    sets, size, dim = x_BND.shape
    channels = weight_BNC.shape[2]
    strides = size * channels, channels, int(channels > 1)
    function = getattr(library(x_BND.dtype), name)
    row_R = mask_BN.flatten().nonzero()
    first = nn.functional.pad(mask_BN.sum(dim=1).cumsum(dim=0), (1, 0))
    x, row, begins, weight, *rest = (
        t if t is None else t.data_ptr() for t in (x_BND, row_R, first, weight_BNC, *more)
    )

    threads = 1 if x_BND.numel() < SMALL else torch.get_num_threads()
    if function(x, row, begins, weight, *strides, *rest, dim, sets, threads):
        raise MemoryError(f"no memory to sort sets of {size}")
