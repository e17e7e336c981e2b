"""How things are measured: by turns in one process, or apart, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from infra.errors import InputError

_STATUS = Path("/proc/self/status")
_FIELDS = ("VmRSS", "VmHWM", "RssAnon", "RssFile")


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Numbers of two sides, one of each from every round; `(R,)` float64."""

    ours_R: np.ndarray
    reference_R: np.ndarray

    def numbers(self, *, invert: bool = False) -> dict[str, Any]:
        """Return a row's `ours`, `reference`, `ratio` and `spread`: medians, lowest and highest.

        Args:
            invert: the ratio is reference / ours, as for times, where it says how many times faster ours is.
        """
        ratio_R = self.ours_R / self.reference_R
        ratio_R = 1 / ratio_R if invert else ratio_R
        return {
            "ours": float(np.median(self.ours_R)),
            "reference": float(np.median(self.reference_R)),
            "ratio": float(np.median(ratio_R)),
            "spread": (float(ratio_R.min()), float(ratio_R.max())) if len(ratio_R) > 1 else None,
        }


def by_turns(ours: Callable[[int], float], reference: Callable[[int], float], *, rounds: int) -> Sides:
    """Measure both sides in every round, so that what else the machine does meets both.

    Both are called with the number of the round, and the one that goes first alternates.
    """
    sides, found = (ours, reference), np.empty((2, rounds))
    for number in range(rounds):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            found[which, number] = sides[which](number)
    return Sides(ours_R=found[0], reference_R=found[1])


def seconds(work: Callable[[], Any]) -> float:
    """Return how long a call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def apart(work: Callable[..., Any], calls: Sequence[tuple]) -> list[Any]:
    """Call `work` with each of the argument tuples, all at once, each in a fresh process; return the results."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(calls), mp_context=context, max_tasks_per_child=1) as pool:
        return [call.result() for call in [pool.submit(work, *arguments) for arguments in calls]]


def memory() -> dict[str, float]:
    """Return this process's memory in MB: `VmRSS` now and `VmHWM` at most, and of now `RssAnon` and `RssFile`.

    Not from `getrusage`, whose maximum a new process inherits from the one that started it.

    Raises:
        InputError: the system has no /proc.
    """
    if not _STATUS.exists():
        raise InputError(f"memory is read from {_STATUS}, which this system does not have; run it on Linux")
    fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return {name: int(fields[name].split()[0]) * 1024 / 1e6 for name in _FIELDS}
