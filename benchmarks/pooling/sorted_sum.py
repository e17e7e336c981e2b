"""The sorted sum against torch's sort, on this CPU and without its widest instruction sets."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from benchmarks.measure import Measurement, Scale, Sides, Size, apart, by_turns, processor_seconds
from benchmarks.random_data import random_tensors, whole_sets
from polypool.aggregators.ranks.kernels import native
from polypool.aggregators.ranks.sorted_sum import sorted_sum
from polypool.infra.errors import InputError

WITHOUT = {"AVX-512": (), "AVX2": ("-mno-avx512f",), "no AVX": ("-mno-avx",)}
"""Instruction sets, the widest first, and what keeps a compiler from all that are wider."""
_TORCH = dict(zip(WITHOUT, ("avx512", "avx2", "default"), strict=True))  # in ATEN_CPU_CAPABILITY


@dataclass(frozen=True, kw_only=True)
class SortSize(Size):
    """Batches of `batch` sets, of as many elements as each of `elements`."""

    quick: ClassVar = {"batch": 8}
    tiny: ClassVar = {"batch": 2, "elements": (2, 5), "width": 16, "rounds": 2}
    batch: int = 128
    elements: tuple[int, ...] = (36, 100, 256)
    width: int = 1024
    rounds: int = 5


def sorting(scale: Scale = "full") -> Iterator[Measurement]:
    """Measure one thread's forward and backward, with each instruction set in a process of its own."""
    size = SortSize.of(scale)
    own, *lesser = list(WITHOUT)[list(_TORCH.values()).index(_capability()) :]
    yield from _rows(own, (), size, targets=(7.0, 5.0))
    for name in lesser:
        yield from _rows(name, WITHOUT[name], size, targets=(1.0, 1.0))


def _capability() -> str:
    """Return the name that torch has for the widest set here; `default` on what is no x86."""
    found = torch.backends.cpu.get_cpu_capability().lower()
    return found if found in _TORCH.values() else "default"


def _rows(
    name: str, flags: tuple[str, ...], size: SortSize, *, targets: tuple[float, float]
) -> list[Measurement]:
    with _restricted(name):
        (sides_S,) = apart(on_one_thread, [(flags, size)])
    first, others = targets
    how = (
        f"as where that is all there is, for torch too ({' '.join(flags)})"
        if flags
        else "all that this CPU has"
    )
    return [
        Measurement(
            name=f"sorted sum {elements}, {name}",
            measured=f"forward and backward of {size.batch} sets of {elements} x {size.width} float32",
            unit="ms",
            target=first if elements == size.elements[0] else others,
            note=f"One thread's processor time, {how}. Reference: torch.sort along the last axis of a copy, "
            "which takes half as long as along the middle one.",
            **sides.numbers(invert=True),
        )
        for elements, sides in zip(size.elements, sides_S, strict=True)
    ]


@contextmanager
def _restricted(name: str) -> Iterator[None]:
    """Have new processes' torch use no wider instructions, and keep what they compile in a folder of its own."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(ATEN_CPU_CAPABILITY=_TORCH[name], XDG_CACHE_HOME=folder)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def on_one_thread(flags: tuple[str, ...], size: SortSize) -> list[Sides]:
    """Return both sides' milliseconds at each set size; to be called `apart`, as it changes what is compiled.

    Raises:
        InputError: nothing can be compiled here.
    """
    torch.set_num_threads(1)
    native.FLAGS = tuple((*each, *flags) for each in native.FLAGS)
    if native.library(torch.float32) is None:
        raise InputError("no C compiler builds the sorted sum here; install one, or have CC name it")
    sides_S = []
    for elements in size.elements:
        ours, theirs = (partial(_gradients, way, *_sets(size, elements)) for way in (sorted_sum, torch_sort))
        # not the elements' gradients: among equal ones any may get a rank's weight
        torch.testing.assert_close(ours()[1], theirs()[1], rtol=1e-4, atol=1e-4)
        sides_S.append(by_turns(_milliseconds(ours), _milliseconds(theirs), rounds=size.rounds))
    return sides_S


def torch_sort(x_BND: Tensor, weight_BN: Tensor, mask_BN: Tensor) -> Tensor:
    """Compute the same with torch: sort along the last axis of a copy, as that is fastest."""
    masked_BDN = x_BND.masked_fill(~mask_BN[..., None], float("-inf")).transpose(1, 2).contiguous()
    sorted_BND = masked_BDN.sort(dim=-1, descending=True).values.transpose(1, 2)
    real_BN = torch.arange(x_BND.shape[1], device=x_BND.device) < mask_BN.sum(dim=1, keepdim=True)
    return (sorted_BND.masked_fill(~real_BN[..., None], 0.0) * (weight_BN * real_BN)[..., None]).sum(dim=1)


def _sets(size: SortSize, elements: int) -> tuple[Tensor, Tensor, Tensor]:
    x_BND, mask_BN = whole_sets(size.batch, elements, size.width)
    (weight_BN,) = random_tensors((size.batch, elements))
    return x_BND.requires_grad_(), weight_BN.softmax(dim=1).requires_grad_(), mask_BN


def _gradients(
    way: Callable[..., Tensor], x_BND: Tensor, weight_BN: Tensor, mask_BN: Tensor
) -> tuple[Tensor, ...]:
    return torch.autograd.grad(way(x_BND, weight_BN, mask_BN).sum(), (x_BND, weight_BN))


def _milliseconds(work: Callable[[], object]) -> Callable[[int], float]:
    return lambda _: 1e3 * processor_seconds(work)
