"""Sizes, measuring in alternation or in processes of their own, and the rows of the table."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch

from polypool.infra.errors import InputError

Scale = Literal["full", "quick", "tiny"]
"""How much a benchmark does: its target's size; a size for continuous integration; a size for tests."""
_STATUS = Path("/proc/self/status")
_FIELDS = ("VmRSS", "VmHWM", "RssAnon", "RssFile")


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much a benchmark does; each has its own.

    Attributes:
        quick: fields that differ in a short benchmark, whose ratios are still meaningful.
        tiny: fields that differ where only the code is tested; the numbers then mean nothing.
        rounds: how often each side is measured.
    """

    quick: ClassVar[Mapping[str, Any]] = {}
    tiny: ClassVar[Mapping[str, Any]] = {}
    rounds: int = 3

    @classmethod
    def of(cls, scale: Scale) -> Self:
        """Return the size to measure at."""
        return cls(**{"full": {}, "quick": cls.quick, "tiny": cls.tiny}[scale])


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A row of the table.

    Args:
        name: of the row.
        measured: what the numbers measure.
        unit: of `ours` and `reference`.
        ours: the project's number.
        reference: the number it is compared with.
        ratio: the median over the rounds; `goal` tells which direction is better.
        spread: the lowest and the highest round's ratio; None where there was one round.
        goal: whether the ratio should be at least or at most the target.
        target: None where there is nothing to reach.
        percent: show the ratio as a percentage, for a part of a whole.
        note: a remark of a sentence or two.
        detail: whether it is one of many of its kind, which the table of docs/speed.md leaves out.
    """

    name: str
    measured: str
    unit: str
    ours: float
    reference: float
    ratio: float
    spread: tuple[float, float] | None = None
    goal: Literal["at least", "at most"] = "at least"
    target: float | None = None
    percent: bool = False
    note: str = ""
    detail: bool = False

    @classmethod
    def of_two(cls, ours: float, reference: float, **described: Any) -> Measurement:
        """Return the row of one number a side, where ours should be the smaller one."""
        return cls(ours=ours, reference=reference, ratio=ours / reference, goal="at most", **described)

    def limit(self, slack: float) -> float | None:
        """Return the target, eased `slack` times; None where there is none."""
        if self.target is None:
            return None
        return self.target / slack if self.goal == "at least" else self.target * slack

    def misses(self, slack: float = 1.0) -> bool:
        """Return whether the ratio misses its target by more than a factor of `slack`."""
        limit = self.limit(slack)
        if limit is None:
            return False
        # NaN misses every target
        return not (self.ratio >= limit if self.goal == "at least" else self.ratio <= limit)

    def entries(self, slack: float = 1.0) -> tuple[str, ...]:
        """Return the cells of the table: name, ours, reference, ratio, target, met."""
        if self.misses():
            met = "MISSED" if self.misses(slack) else f"within {slack:g}x"
        else:
            met = "-" if self.target is None else "met"
        amounts = self._amount(self.ours), self._amount(self.reference)
        return self.name, *amounts, self.shown_ratio(), self.shown_target(), met

    def shown_ratio(self) -> str:
        """Return the ratio, with the lowest and the highest round's."""
        ratio = self._show(self.ratio)
        if self.spread is None:
            return ratio
        low, high = (self._show(bound)[:-1] for bound in self.spread)
        return f"{ratio} ({low}-{high})"

    def shown_target(self, slack: float = 1.0) -> str:
        """Return the target, eased `slack` times, with its side."""
        sign, limit = ">=" if self.goal == "at least" else "<=", self.limit(slack)
        return "-" if limit is None else f"{sign} {self._show(limit)}"

    def _show(self, ratio: float) -> str:
        return f"{100 * ratio:.1f}%" if self.percent else f"{ratio:.2f}x"

    def _amount(self, value: float) -> str:
        counted = isinstance(value, int)
        digits = 0 if counted else max(0, 2 - len(f"{abs(value):.0f}".lstrip("0")))
        return f"{value:,.{digits}f} {self.unit}".rstrip()


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
    """Measure both sides in every round, so that other work on the machine affects both.

    Both are called with the number of the round, and the one that goes first alternates.
    """
    sides, value_2R = (ours, reference), np.empty((2, rounds))
    for number in range(rounds):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            value_2R[which, number] = sides[which](number)
    return Sides(ours_R=value_2R[0], reference_R=value_2R[1])


def seconds(work: Callable[[], Any]) -> float:
    """Return how long a call computes: by the clock, but where torch has one thread, the processor's time.

    That is the same however busy the machine is. Not for what waits: for a disk, or for other processes.
    """
    return processor_seconds(work) if torch.get_num_threads() == 1 else elapsed(work)


def processor_seconds(work: Callable[[], Any]) -> float:
    """Return how long a call keeps processors busy, all threads of this process together."""
    started = time.process_time()
    work()
    return time.process_time() - started


def of_children() -> float:
    """Return the processor time of all processes that this one started and waited for, in seconds."""
    of = resource.getrusage(resource.RUSAGE_CHILDREN)
    return of.ru_utime + of.ru_stime


def elapsed(work: Callable[[], Any]) -> float:
    """Return how long a call takes by the clock."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def apart(work: Callable[..., Any], calls: Sequence[tuple]) -> list[Any]:
    """Call `work` with each of the argument tuples, all at once, each in a fresh process; return the results."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(calls), mp_context=context, max_tasks_per_child=1) as pool:
        try:
            return [call.result() for call in [pool.submit(work, *arguments) for arguments in calls]]
        except KeyboardInterrupt:  # the pool would wait for the end of their work
            for process in multiprocessing.active_children():
                process.terminate()
            raise


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


def growth(prepare: Callable[..., tuple], work: Callable[..., Any], *arguments: Any) -> float:
    """Return by how much the peak memory of `work(*prepare(*arguments))` exceeds what was prepared, in MB.

    To be called `apart`: a process has one peak.
    """
    ready = prepare(*arguments)
    before = memory()["VmRSS"]
    with torch.inference_mode():
        work(*ready)
    return memory()["VmHWM"] - before
