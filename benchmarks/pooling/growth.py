"""Growth of every aggregator's time and memory with the size of sets."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from tqdm import tqdm

from benchmarks.measure import Measurement, Scale, Sides, Size, apart, memory, seconds
from benchmarks.pooling.costs import CostSize, aggregator_step
from polypool.aggregators.aggregator import Aggregator
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS

LINEAR = 1.5
"""What a ratio may be and still count as linear growth: small products and caches cost more or less with the shape."""
_PEAK = Path("/proc/self/clear_refs")
_MAPPED = -3  # glibc's M_MMAP_THRESHOLD


@dataclass(frozen=True, kw_only=True)
class GrowthSize(Size):
    """About `total` elements in sets of each of the sizes `elements`; the last is held against the first."""

    tiny: ClassVar = {"total": 12, "elements": (2, 3, 6), "width": 16, "rounds": 2}
    total: int = 4096
    elements: tuple[int, ...] = (36, 256, 1024)
    width: int = 1024
    rounds: int = 3


def growth(scale: Scale = "full") -> list[Measurement]:
    """Measure forward and backward of every aggregator with its default parameters, in a process of their own."""
    size = GrowthSize.of(scale)
    rows: list[Measurement] = []
    beyond: dict[str, list[str]] = {"time": [], "memory": []}
    (found,) = apart(_all, [(size,)])
    for name, (micro_RS, byte_1S) in found.items():
        for what, unit, found_RS in (("time", "us", micro_RS), ("memory", "kB", byte_1S / 1e3)):
            row = _row(name, what, unit, found_RS, size)
            beyond[what] += [name] if row.ratio > LINEAR else []
            rows.append(row)
    return [*(_beyond(what, beyond[what], len(found), size) for what in beyond), *rows]


def _all(size: GrowthSize) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    torch.manual_seed(0)
    names = [name for name, _ in AGGREGATORS.usable()]
    return {
        name: an_element(AGGREGATORS.build(name, size.width), size)
        for name in tqdm(names, desc="growth", leave=False, delay=2)
    }


def an_element(module: Aggregator, size: GrowthSize) -> tuple[np.ndarray, np.ndarray]:
    """Return what an element of sets of each size takes: microseconds of each round `(R, S)`, and bytes `(1, S)`.

    One core's microseconds. Bytes are those of the elements and their gradient, and at the peak of all the rest. To be
    called `apart`: it leaves torch with one thread, and what is freed is given back at once from then on.

    Raises:
        InputError: the system does not tell the peak of a process anew.
    """
    torch.set_num_threads(1)
    ctypes.CDLL(None).mallopt(_MAPPED, 1 << 16)  # from the first block on: one taken again is not counted
    count_S = np.array([max(1, size.total // elements) * elements for elements in size.elements])
    steps = [
        aggregator_step(module, CostSize(batch=count // elements, elements=elements, width=size.width))
        for count, elements in zip(count_S.tolist(), size.elements, strict=True)
    ]
    second_RS = np.array([[seconds(step) for step in steps] for _ in range(size.rounds)])
    byte_S = np.array([_peak(step) for step in steps])
    return 1e6 * second_RS / count_S, (byte_S / count_S + 2 * 4 * size.width)[None]


def _peak(work: Callable[[], None]) -> float:
    """Return by how many bytes memory at its peak exceeds what is held before and after."""
    work()
    before = memory()["VmRSS"]
    try:
        _PEAK.write_text("5")
    except OSError as error:
        raise InputError(f"the peak of memory is reset through {_PEAK}, and that fails: {error}") from error
    work()
    return 1e6 * max(0.0, memory()["VmHWM"] - before)


def _row(name: str, what: str, unit: str, found_RS: np.ndarray, size: GrowthSize) -> Measurement:
    first, *between, last = size.elements
    ratios = np.median(found_RS / found_RS[:, :1], axis=0)[1:-1]
    middle = "; ".join(f"{elements}: {ratio:.2f}x" for elements, ratio in zip(between, ratios, strict=True))
    return Measurement(
        name=f"growth of {name}: {what}",
        measured=f"{what} an element takes in sets of {last}; reference: in sets of {first}",
        unit=unit,
        goal="at most",
        note=f"In sets of {middle}.",
        detail=True,
        **Sides(ours_R=found_RS[:, -1], reference_R=found_RS[:, 0]).numbers(),
    )


def _beyond(what: str, names: list[str], count: int, size: GrowthSize) -> Measurement:
    """Return the row that names what grows faster than linearly."""
    return Measurement(
        name=f"growth of {what}",
        measured=(
            f"of all aggregators those whose {what} an element, forward and backward, is more than {LINEAR} times as "
            f"much in sets of {size.elements[-1]} as in sets of {size.elements[0]}: {', '.join(names) or 'none'}"
        ),
        unit="",
        ours=len(names),
        reference=count,
        ratio=len(names) / count,
        goal="at most",
        percent=True,
    )
