"""Cost of every aggregator relative to a mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from benchmarks.measure import Measurement, Scale, Size, by_turns, seconds
from benchmarks.random_data import whole_sets
from polypool.aggregators.aggregator import Aggregator, Context
from polypool.infra.registry import AGGREGATORS


@dataclass(frozen=True, kw_only=True)
class CostSize(Size):
    """A batch of sets, and of sets of the other modality for aggregators that look at it."""

    tiny: ClassVar = {"batch": 2, "elements": 3, "context": 2, "width": 16, "rounds": 2}
    batch: int = 128
    elements: int = 36
    context: int = 14
    width: int = 1024
    rounds: int = 5


def costs(scale: Scale = "full") -> Iterator[Measurement]:
    """Measure every aggregator with its default parameters by turns with the mean, in training."""
    size = CostSize.of(scale)
    torch.manual_seed(0)
    mean = aggregator_step(AGGREGATORS.build("mean", size.width), size)
    sets = f"{size.batch} sets of {size.elements} x {size.width}"
    for name, _ in AGGREGATORS.usable():
        module = AGGREGATORS.build(name, size.width)
        ours = aggregator_step(module, size)
        times = by_turns(
            lambda _, ours=ours: 1e3 * seconds(ours), lambda _: 1e3 * seconds(mean), rounds=size.rounds
        )
        weights = sum(parameter.numel() for parameter in module.parameters())
        yield Measurement(
            name=f"cost of {name}",
            measured=f"{weights:,} weights; forward and backward of {sets}",
            unit="ms",
            goal="at most",
            detail=True,
            **times.numbers(),
        )


def aggregator_step(module: Aggregator, size: CostSize) -> Callable[[], None]:
    """Return what runs an aggregator forward and backward once; gradients stay until it is called again."""
    x_BND, mask_BN = whole_sets(size.batch, size.elements, size.width)
    x_BND.requires_grad_()
    context = None
    if module.context == "set":
        context = Context(*whole_sets(size.batch, size.context, size.width))
    elif module.context == "vector":
        context = Context(torch.randn(size.batch, size.width))

    def work() -> None:
        x_BND.grad = None
        module.zero_grad()
        module(x_BND, mask_BN, context=context).vectors.sum().backward()

    work()
    return work
