"""Attention in bfloat16 on a CPU, where autocast leaves it in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn import functional as F

from benchmarks.measure import Measurement, Scale, Size, by_turns, seconds
from polypool.infra.compute.attention import attend_in_float32


@dataclass(frozen=True, kw_only=True)
class AttentionSize(Size):
    """Sets and their elements, heads, and the width of one."""

    quick: ClassVar = {"rounds": 3}
    tiny: ClassVar = {"sets": 2, "elements": 3, "heads": 2, "width": 4, "rounds": 1}
    sets: int = 128
    elements: int = 17
    heads: int = 8
    width: int = 48
    rounds: int = 9


def attention(scale: Scale = "full") -> Iterator[Measurement]:
    """Measure forward and backward as in a step, and by torch's kernels in bfloat16."""
    size = AttentionSize.of(scale)
    torch.manual_seed(0)
    attend_in_float32()
    shape = (size.sets, size.heads, size.elements, size.width)
    parts = [torch.randn(shape, dtype=torch.bfloat16).requires_grad_() for _ in range(3)]
    mask_BHQN = torch.ones(size.sets, 1, 1, size.elements, dtype=torch.bool)

    def side(*, autocast: bool) -> Callable[[int], float]:
        def pool() -> None:
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                found = F.scaled_dot_product_attention(*parts, mask_BHQN)
            torch.autograd.grad(found.float().sum(), parts)

        pool()
        return lambda _: 1e3 * seconds(pool)

    yield Measurement(
        name="attention in bfloat16",
        measured=f"forward and backward of {size.sets} sets of {size.elements}, {size.heads} heads of {size.width}, on "
        "the CPU",
        unit="ms",
        target=2.0,
        note="Reference: torch's kernels in bfloat16.",
        **by_turns(side(autocast=True), side(autocast=False), rounds=size.rounds).numbers(invert=True),
    )
