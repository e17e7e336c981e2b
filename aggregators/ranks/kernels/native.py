"""The sorted weighted sum on the CPU: a small C file, built with the machine's own compiler when first needed.

The compiled file is kept in the user's cache (`~/.cache/polypool`, or below `XDG_CACHE_HOME`) for later processes.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
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
    """Load the functions for float32 or float64; None where they cannot be built."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if dtype not in TYPES or not compiler or not shutil.which(compiler[0]):
        return None
    real, integer = TYPES[dtype]
    command = [*compiler, "-O3", "-shared", "-fPIC", f"-DREAL={real}", f"-DINT={integer}", str(SOURCE)]
    try:
        loaded = _load(command)
    except (OSError, subprocess.CalledProcessError) as error:
        logging.getLogger(__name__).info("sorting without compiled code: %s", error)
        return None
    pointer, count = ctypes.c_void_p, ctypes.c_long
    common, last = [*[pointer] * 4, *[count] * 3], [count, count, ctypes.c_int]
    loaded.weighted_sum.argtypes = [*common, pointer, *last]
    loaded.gradients.argtypes = [*common, *[pointer] * 3, *last]
    return loaded


def kept(dtype: torch.dtype, what: str, measure: Callable[[], float]) -> float:
    """Return a number about the functions for a type: the one kept beside the compiled file, else a new one."""
    path = Path(library(dtype)._name).with_suffix(".json")
    try:
        return float(json.loads(path.read_text())[what])
    except (OSError, ValueError, KeyError, TypeError):
        number = measure()
    with suppress(OSError):  # built for this process alone
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps({what: number}))
        fresh.replace(path)
    return number


def _load(command: Sequence[str]) -> ctypes.CDLL:
    """Load the compiled file from the user's cache, where it is put first if need be.

    Where the cache cannot be written, or holds what cannot be loaded, the file is built for this process alone.

    Raises:
        OSError: the system refuses what was built.
        subprocess.CalledProcessError: the compiler does not take the source.
    """
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polypool"
        cached = cache / f"sorted_sum_{_key(command)}.so"
        if not cached.exists():
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                _compile(command, Path(folder)).replace(
                    cached
                )  # at once: other processes see all of it or nothing
        return ctypes.CDLL(str(cached))
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        with tempfile.TemporaryDirectory() as folder:
            return ctypes.CDLL(str(_compile(command, Path(folder))))


def _key(command: Sequence[str]) -> str:
    """Return a name for what a command makes here: code for this very processor, by this very compiler."""
    version = subprocess.run([*command[:-1], "--version"], capture_output=True).stdout
    info = Path("/proc/cpuinfo")
    processor = (
        info.read_text().partition("\n\n")[0].splitlines() if info.exists() else [platform.processor()]
    )
    able = [line for line in processor if line.startswith(("flags", "Features", "model name"))] or processor
    parts = [*command[:-1], *sum(FLAGS, ()), version.decode(errors="replace"), platform.machine(), *able]
    return hashlib.sha256("\0".join(parts).encode() + SOURCE.read_bytes()).hexdigest()[:24]


def _compile(command: Sequence[str], folder: Path) -> Path:
    """Return the compiled file, made with the first flags that the compiler takes."""
    built = folder / "sorted_sum.so"
    for flags in FLAGS:
        done = subprocess.run([*command, *flags, "-o", str(built)], capture_output=True)
        if done.returncode == 0:
            return built
    raise subprocess.CalledProcessError(done.returncode, done.args, done.stdout, done.stderr)


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
