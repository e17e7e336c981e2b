"""Measure two sides alternately in one run, and print their ratio."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch


class Measured(NamedTuple):
    """Medians over the rounds: ours, in its unit, and ours / reference."""

    ours: float
    ratio: float


def compare(
    name: str,
    ours: Callable[[int], float],
    reference: Callable[[int], float],
    *,
    rounds: int,
    unit: str = "ms",
) -> Measured:
    """Measure both sides in every round, so that other work on the machine affects both; print the ratio.

    Args:
        name: description of the measurement and its reference.
        ours, reference: functions of the round's number that return a measurement; rounds alternate their order.
        rounds: number of rounds.
        unit: unit of the measurements.
    """
    value_2R = np.empty((2, rounds))
    for number in range(rounds):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            value_2R[side, number] = (ours, reference)[side](number)
    ratio_R = value_2R[0] / value_2R[1]
    own, other = np.median(value_2R, axis=1)
    print(
        f"{name}: {own:,.3g} {unit}, reference {other:,.3g} {unit}: {np.median(ratio_R):.2f}x "
        f"({ratio_R.min():.2f}-{ratio_R.max():.2f})",
        flush=True,
    )
    return Measured(float(own), float(np.median(ratio_R)))


def milliseconds(work: Callable[[], Any], *, repeats: int = 1) -> Callable[[int], float]:
    """Return a function that returns the mean milliseconds of a call of `work`, GPU work included, after a warm-up.

    It measures wall-clock time, or with one thread of torch (OMP_NUM_THREADS=1) processor time, which is independent of
    other work on the machine.
    """
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter

    def timed(_: int) -> float:
        started = clock()
        for _ in range(repeats):
            work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return 1e3 * (clock() - started) / repeats

    timed(0)
    return timed


def apart(work: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of `work(*arguments)` in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def run(main: Callable[..., None]) -> None:
    """Run a script's `main(quick=...)`; `--quick` takes tiny sizes, whose numbers mean nothing."""
    main(quick="--quick" in sys.argv[1:])
