"""The map of regions in bfloat16 on a CPU, whose number differs from batch to batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar
from unittest import mock

import torch

from benchmarks.measure import Measurement, Scale, Size, by_turns, seconds
from polypool.encoders import elements
from polypool.encoders.visual.stored import Regions


@dataclass(frozen=True, kw_only=True)
class RowsSize(Size):
    """Batches of sets of up to `regions`, of which `fewest` at least are kept, and their width."""

    quick: ClassVar = {"rounds": 3}
    tiny: ClassVar = {"sets": 2, "regions": 4, "fewest": 2, "width": 8, "batches": 2, "rounds": 1}
    sets: int = 128
    regions: int = 36
    fewest: int = 1
    width: int = 384
    batches: int = 10
    rounds: int = 9


def varied_rows(scale: Scale = "full") -> Iterator[Measurement]:
    """Measure forward and backward of batches, each new, with and without rows to a multiple of `STEP`."""
    size = RowsSize.of(scale)
    torch.manual_seed(0)
    draw = random.Random(0)
    encoder = Regions({"dim": size.width}, width=size.width)
    x_BNF = torch.randn(size.sets, size.regions, size.width)

    def with_step(step: int) -> Callable[[int], float]:
        def batches() -> None:
            for _ in range(size.batches):
                count_B = torch.tensor(draw.choices(range(size.fewest, size.regions + 1), k=size.sets))
                mask_BN = torch.arange(size.regions) < count_B[:, None]
                with torch.autocast("cpu", torch.bfloat16):
                    out_BND, _ = encoder(x_BNF, mask_BN)
                out_BND.float().sum().backward()

        def turn(_: int) -> float:
            with mock.patch.object(elements, "STEP", step):
                return 1e3 * seconds(batches) / size.batches

        return turn

    yield Measurement(
        name="varied rows",
        measured=f"regions of {size.width} in bfloat16, forward and backward of {size.sets} sets of {size.fewest} to "
        f"{size.regions}, on the CPU",
        unit="ms",
        target=1.2,
        note="Reference: as many rows as there are real elements.",
        **by_turns(with_step(elements.STEP), with_step(1), rounds=size.rounds).numbers(invert=True),
    )
