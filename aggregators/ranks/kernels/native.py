"""Pooling by rank on CPUs: two small C files, compiled on first use with the machine's compiler.

The compiled library is cached in `~/.cache/polypool`, or below `XDG_CACHE_HOME`.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from polypool.infra.compute.measured import processor
from polypool.infra.storage import user_cache

SOURCES = tuple(Path(__file__).with_name(name) for name in ("sorted_sum.c", "shared_gru.c"))
TYPES = {torch.float32: ("float", "int"), torch.float64: ("double", "long long")}
THREADS = ("-fopenmp",), ()
PROCESSOR = ("-march=native", "-mno-avx512f"), ("-mcpu=native",), ()
FLAGS = tuple((*threads, *processor) for threads, processor in itertools.product(THREADS, PROCESSOR))
"""Compiler flags in order of preference; the first set that the compiler accepts is used. AVX-512 compares into mask
registers, which are slow to read back: the sorting network took 1.5 times as long as with AVX2."""
CHUNK = 256
"""Channels per work item."""
SMALL = 1 << 16
"""Number of values below which one thread is used."""
LARGEST = 1 << 16
"""Largest set size to sort: the sorting network then takes 35 MB per thread."""
SMALLEST = 4
"""Fewest channels to sort: the network processes 8 or 16 at once; for fewer than 4, torch is faster."""


@lru_cache
def library(dtype: torch.dtype) -> ctypes.CDLL | None:
    """Load the library for float32 or float64; None for other types, or if it cannot be compiled."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if dtype not in TYPES or not compiler or not shutil.which(compiler[0]):
        return None
    real, integer = TYPES[dtype]
    command = [*compiler, "-O3", "-shared", "-fPIC", f"-DREAL={real}", f"-DINT={integer}"]
    try:
        loaded = _load(command)
    except (OSError, subprocess.CalledProcessError) as error:
        logging.getLogger(__name__).info("pooling by rank without compiled code: %s", error)
        return None
    pointer, count = ctypes.c_void_p, ctypes.c_long
    common = [*[pointer] * 3, *[count] * 7, ctypes.c_int]
    loaded.weighted_sum.argtypes = [*common, pointer]
    loaded.gradients.argtypes = [*common, *[pointer] * 3]
    for procedure, more in ((loaded.shared_states, 4), (loaded.shared_gradients, 5)):
        procedure.argtypes, procedure.restype = [pointer, *[count] * 3, *[pointer] * more], None
    return loaded


def _load(command: Sequence[str]) -> ctypes.CDLL:
    """Load the library from the user's cache, compiling it on a miss.

    If the cache is not writable, or its file does not load, the library is compiled for this process only.

    Raises:
        OSError: the compiled library cannot be loaded.
        subprocess.CalledProcessError: the compiler rejects the source.
    """
    try:
        cache = user_cache()
        cached = cache / f"sorted_sum_{_key(command)}.so"
        if not cached.exists():
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                _compile(command, Path(folder)).replace(
                    cached
                )  # atomic rename: other processes see the complete file or none
        return ctypes.CDLL(str(cached))
    except (OSError, RuntimeError):  # RuntimeError: no home directory
        with tempfile.TemporaryDirectory() as folder:
            return ctypes.CDLL(str(_compile(command, Path(folder))))


def _key(command: Sequence[str]) -> str:
    """Return a cache key for a command: it covers source, processor and compiler."""
    version = subprocess.run([*command, "--version"], capture_output=True).stdout
    parts = [*command, *sum(FLAGS, ()), version.decode(errors="replace"), *processor()]
    sources = b"".join(source.read_bytes() for source in SOURCES)
    return hashlib.sha256("\0".join(parts).encode() + sources).hexdigest()[:24]


def _compile(command: Sequence[str], folder: Path) -> Path:
    """Compile with the first set of flags that the compiler accepts; return the library's path."""
    built = folder / "sorted_sum.so"
    for flags in FLAGS:
        done = subprocess.run(
            [*command, *flags, *map(str, SOURCES), "-lm", "-o", str(built)], capture_output=True
        )
        if done.returncode == 0:
            return built
    raise subprocess.CalledProcessError(done.returncode, done.args, done.stdout, done.stderr)


class SortedSum(torch.autograd.Function):
    """`(x_BND, weight_BNC, mask_BN)` -> `(B, D)`; C is D, or 1 for weights shared by all channels.

    Only the inputs are saved for the backward pass, which sorts again.
    """

    @staticmethod
    def forward(ctx: Any, x_BND: Tensor, weight_BNC: Tensor, mask_BN: Tensor) -> Tensor:
        """Sum with as many threads as torch uses."""
        x_BND, weight_BNC, mask_BN = x_BND.contiguous(), weight_BNC.contiguous(), mask_BN.contiguous()
        out_BD = torch.empty_like(x_BND[:, 0])
        _call("weighted_sum", x_BND, mask_BN, weight_BNC, out_BD)
        ctx.save_for_backward(x_BND, weight_BNC, mask_BN)
        return out_BD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BD: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of elements and weights; at ties, any of the equal elements may get a rank's weight."""
        for_x, for_weight, _ = ctx.needs_input_grad
        return *_gradients(*ctx.saved_tensors, grad_BD, for_x=for_x, for_weight=for_weight), None


class SortDescending(torch.autograd.Function):
    """`(x_BND, mask_BN)` -> `(B, N, D)`: values in descending order, then zeros.

    The sorted values are a weighted sum's gradient with respect to its weights, and the gradient of sorting is the one
    with respect to the elements: both use the gradient kernel of the sum.
    """

    @staticmethod
    def forward(ctx: Any, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Sort with as many threads as torch uses."""
        x_BND, mask_BN = x_BND.contiguous(), mask_BN.contiguous()
        ctx.save_for_backward(x_BND, mask_BN)
        ones_BD = torch.ones_like(x_BND[:, 0])
        return _gradients(x_BND, x_BND, mask_BN, ones_BD, for_x=False, for_weight=True)[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BND: Tensor) -> tuple[Tensor, None]:
        """Scatter the gradients to the values' original positions."""
        x_BND, mask_BN = ctx.saved_tensors
        ones_BD = torch.ones_like(x_BND[:, 0])
        grad_BND = grad_BND.contiguous()
        return _gradients(x_BND, grad_BND, mask_BN, ones_BD, for_x=True, for_weight=False)[0], None


def _gradients(
    x_BND: Tensor, weight_BNC: Tensor, mask_BN: Tensor, grad_BD: Tensor, *, for_x: bool, for_weight: bool
) -> tuple[Any, Any]:
    """Return the gradients of a sum's elements and weights; None for one that is not requested."""
    grad_x_BND = torch.empty_like(x_BND) if for_x else None
    shared, grad_weight = weight_BNC.shape[2] == 1, None
    if for_weight:  # each chunk of channels adds to a shared weight's gradient
        parts = -(-x_BND.shape[2] // CHUNK)
        grad_weight = (
            weight_BNC.new_empty(len(x_BND), parts, x_BND.shape[1])
            if shared
            else torch.empty_like(weight_BNC)
        )
    _call("gradients", x_BND, mask_BN, weight_BNC, grad_BD.contiguous(), grad_x_BND, grad_weight)
    if grad_weight is not None and shared:
        grad_weight = grad_weight.sum(dim=1)[..., None]
    return grad_x_BND, grad_weight


def _call(name: str, x_BND: Tensor, mask_BN: Tensor, weight_BNC: Tensor, *more: Tensor | None) -> None:
    """Call a library function for all sets; `ctypes` releases the GIL."""
    sets, size, dim = x_BND.shape
    channels = weight_BNC.shape[2]
    strides = size * channels, channels, int(channels > 1)
    x, mask, weight, *rest = (
        None if t is None else t.data_ptr() for t in (x_BND, mask_BN, weight_BNC, *more)
    )
    threads = 1 if x_BND.numel() < SMALL else torch.get_num_threads()
    function = getattr(library(x_BND.dtype), name)
    if function(x, mask, weight, *strides, sets, size, dim, CHUNK, threads, *rest):
        raise MemoryError(f"no memory to sort sets of {size}")
