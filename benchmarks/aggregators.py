"""Every aggregator, forward and backward with its default parameters, against the mean."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.random_data import whole_sets
from benchmarks.side_by_side import compare, milliseconds, run
from polypool.aggregators.aggregator import Aggregator, Context
from polypool.infra.registry import AGGREGATORS


def step(module: Aggregator, sizes: tuple[int, int, int, int]) -> Callable[[], None]:
    """Return a function that runs an aggregator forward and backward; `sizes`: batch, elements, context, width."""
    batch, elements, others, width = sizes
    x_BND, mask_BN = whole_sets(batch, elements, width)
    x_BND.requires_grad_()
    context = {
        "none": None,
        "set": Context(*whole_sets(batch, others, width)),
        "vector": Context(torch.randn(batch, width)),
    }[module.context]

    def work() -> None:
        x_BND.grad = None
        module.zero_grad()
        module(x_BND, mask_BN, context=context).vectors.sum().backward()

    return work


def main(*, quick: bool = False) -> None:
    sizes, rounds = ((2, 3, 2, 16), 1) if quick else ((128, 36, 14, 1024), 5)
    torch.manual_seed(0)
    mean = milliseconds(step(AGGREGATORS.build("mean", sizes[-1]), sizes))
    for name in ("gpo", "esa") if quick else AGGREGATORS.built_in():
        ours = milliseconds(step(AGGREGATORS.build(name, sizes[-1]), sizes))
        compare(f"{name} / mean, {sizes[0]} sets of {sizes[1]} x {sizes[-1]}", ours, mean, rounds=rounds)


if __name__ == "__main__":
    run(main)
