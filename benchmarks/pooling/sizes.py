"""`gpo` against the usual way over a grid of batches and set sizes, of which the worst is shown."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from benchmarks.measure import Measurement, Scale, Sides, Size, apart, by_turns, processor_seconds
from benchmarks.pooling.gpo import usual_way
from benchmarks.random_data import whole_sets
from polypool.aggregators.aggregator import Pooled
from polypool.aggregators.ranks.gpo import GPO


@dataclass(frozen=True, kw_only=True)
class GridSize(Size):
    """Every batch of every size that has at most `most` elements."""

    quick: ClassVar = {"batches": (1, 16), "elements": (10, 100), "rounds": 3}
    tiny: ClassVar = {"batches": (1, 2), "elements": (2, 5), "width": 16, "rounds": 2}
    batches: tuple[int, ...] = (1, 8, 16, 128)
    elements: tuple[int, ...] = (10, 36, 100, 256, 1024)
    width: int = 1024
    most: int = 1 << 12


class Way(NamedTuple):
    """What is measured: a type of elements, with gradients or as a served model pools, with a compiler or without."""

    dtype: torch.dtype = torch.float32
    training: bool = True
    compiled: bool = True


WAYS = {
    "float32": Way(),
    "bfloat16": Way(dtype=torch.bfloat16),
    "served": Way(training=False),
    "no compiler": Way(compiled=False),
}


def gpo_sizes(scale: Scale = "full") -> list[Measurement]:
    """Measure one thread, each way in a process of its own."""
    size = GridSize.of(scale)
    rows = []
    for name, way in WAYS.items():
        (found,) = apart(on_one_thread, [(way, size)])
        lowest = sorted((sides.numbers(invert=True)["ratio"], cell) for cell, sides in found.items())
        batch, elements = lowest[0][1]
        others = ", ".join(f"{cell[0]} x {cell[1]}: {ratio:.1f}" for ratio, cell in lowest[1:])
        rows.append(
            Measurement(
                name=f"gpo, worst size, {name}",
                measured=f"{'forward and backward' if way.training else 'forward'} of {batch} sets of {elements} x "
                f"{size.width}, the worst of {len(found)} batches and sizes",
                unit="ms",
                target=5.0 if way.compiled else 3.0,
                note=f"One thread's processor time. Reference: the usual way, as for gpo. The others: {others}.",
                **found[batch, elements].numbers(invert=True),
            )
        )
    return rows


def on_one_thread(way: Way, size: GridSize) -> dict[tuple[int, int], Sides]:
    """Return both sides' milliseconds for each batch and size; to be called `apart`."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if not way.compiled:
        os.environ["CC"] = ""
    gpo, found = GPO(size.width), {}
    for batch in size.batches:
        for elements in (elements for elements in size.elements if batch * elements <= size.most):
            x_BND, mask_BN = whole_sets(batch, elements, size.width)
            repeats = max(1, 256 // (batch * elements))
            sides = [
                _milliseconds(gpo, pool, x_BND.to(way.dtype), mask_BN, repeats, training=way.training)
                for pool in (gpo, partial(usual_way, gpo))
            ]
            found[batch, elements] = by_turns(*sides, rounds=size.rounds)
    return found


def _milliseconds(
    gpo: GPO,
    pool: Callable[[Tensor, Tensor], Pooled],
    x_BND: Tensor,
    mask_BN: Tensor,
    repeats: int,
    *,
    training: bool,
) -> Callable[[int], float]:
    """Return what pools `repeats` times, and says how many milliseconds one took."""

    def work() -> None:
        for _ in range(repeats):
            if training:
                x_BND.grad = None
                gpo.zero_grad()
                pool(x_BND, mask_BN).vectors.sum().backward()
            else:
                with torch.inference_mode():
                    pool(x_BND, mask_BN)

    x_BND.requires_grad_(training)
    work()
    return lambda _: 1e3 * processor_seconds(work) / repeats
