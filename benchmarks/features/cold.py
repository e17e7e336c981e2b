"""The feature store when sets are not in memory: after a start, and where there are more of them than memory."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.features.formats import HDF5, PREADV, STORE, Batches, Format
from benchmarks.features.memory_group import within
from benchmarks.features.page_cache import forget, read_from_disks
from benchmarks.measure import Measurement, Scale, Sides, Size
from polypool.infra.errors import InputError

_COLD = "dropped from the page cache before each round. Opening and checks are counted."


@dataclass(frozen=True, kw_only=True)
class ColdSize(Size):
    """There are `sets` of 10 to 36 vectors, read in batches of `batch`: in each round an epoch of them."""

    quick: ClassVar = {"sets": 1600, "rounds": 7}
    tiny: ClassVar = {"sets": 40, "dim": 16, "batch": 8, "rounds": 2}
    sets: int = 3200
    dim: int = 2048
    batch: int = 128
    rounds: int = 11

    def rows(self, number: int) -> list[np.ndarray]:
        """Return the rows of each batch of a round."""
        row_S = np.random.default_rng(number).permutation(self.sets)
        return [row_S[start : start + self.batch] for start in range(0, self.sets, self.batch)]

    @property
    def unmeasured(self) -> int:
        """Batches that are read before the measured ones."""
        return 0


@dataclass(frozen=True, kw_only=True)
class BeyondSize(ColdSize):
    """Under `memory_MB` of memory, `warm_up` batches of random sets fill it, and `batches` more are measured."""

    quick: ClassVar = {}
    tiny: ClassVar = {"sets": 40, "dim": 16, "batch": 8, "rounds": 1, "warm_up": 1, "batches": 2}
    sets: int = 18_800
    rounds: int = 3
    memory_MB: int = 900
    warm_up: int = 40
    batches: int = 30

    def rows(self, number: int) -> list[np.ndarray]:
        """Return the rows of each batch of a round."""
        shape = (self.warm_up + self.batches, self.batch)
        return list(np.random.default_rng(number).integers(self.sets, size=shape))

    @property
    def unmeasured(self) -> int:
        """Batches that are read before the measured ones."""
        return self.warm_up


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How batches were read, in every round.

    Args:
        rate_R: bytes of sets a second, in MB/s.
        asked_R: bytes of sets, in MB.
        read_R: bytes that were read from disks for them, in MB.
    """

    rate_R: np.ndarray
    asked_R: np.ndarray
    read_R: np.ndarray


def store_cold(scale: Scale = "full") -> list[Measurement]:
    """Measure how fast an epoch is read that is on disk alone, and how much is read for it."""
    size = ColdSize.of(scale)
    with _written((STORE, HDF5), size) as (folder, about):
        readings = read((STORE, HDF5, PREADV), folder, size)
    return _rows("store, cold", readings, size, f"{about}, {_COLD} ")


def store_beyond(scale: Scale = "full") -> list[Measurement]:
    """Measure the same where random batches come from more sets than there is memory."""
    size = BeyondSize.of(scale)
    with _written((STORE, HDF5), size) as (folder, about):
        readings = within(size.memory_MB, read, (STORE, HDF5, PREADV), folder, size)
    about += f" under a control group's limit of {size.memory_MB} MB, which {size.warm_up} random batches have filled. "
    return _rows("store beyond memory", readings, size, about)


def against(reference: Format, scale: Scale = "full") -> list[Measurement]:
    """Measure a cold epoch of the store and of another format."""
    reference.require()
    size = ColdSize.of(scale)
    with _written((STORE, reference), size) as (folder, about):
        readings = read((STORE, reference), folder, size)
    return [_rate("store, cold", readings, reference, size, f"{about}, {_COLD} ", detail=True)]


def _rows(what: str, readings: dict[str, Reading], size: ColdSize, about: str) -> list[Measurement]:
    ours, h5py = readings[STORE.name], readings[HDF5.name]
    theirs = Sides(ours_R=h5py.read_R, reference_R=h5py.asked_R).numbers()["ratio"]
    return [
        _rate(what, readings, HDF5, size, about, target=1.5),
        _rate(what, readings, PREADV, size, about),
        Measurement(
            name=f"{what}: read amplification",
            measured=f"bytes read from the disk for {len(size.rows(0)) - size.unmeasured} batches",
            unit="MB",
            goal="at most",
            target=1.3,
            note=f"{about}Reference: the bytes of the sets; what memory still holds is not read. h5py: {theirs:.2f}x.",
            **Sides(ours_R=ours.read_R, reference_R=ours.asked_R).numbers(),
        ),
    ]


def _rate(
    what: str,
    readings: dict[str, Reading],
    reference: Format,
    size: ColdSize,
    about: str,
    **judged: Any,
) -> Measurement:
    ours, theirs = readings[STORE.name], readings[reference.name]
    return Measurement(
        name=f"{what} / {reference.name}",
        measured=f"batches of {size.batch} sets of 10-36 x {size.dim} float16, padded",
        unit="MB/s",
        note=f"{about}Reference: {reference.how}.",
        **judged,
        **Sides(ours_R=ours.rate_R, reference_R=theirs.rate_R).numbers(),
    )


@contextmanager
def _written(formats: Sequence[Format], size: ColdSize) -> Iterator[tuple[Path, str]]:
    """Write the sets in each format to a folder of its name, for a while; yield where, and what was written."""
    size_S = sizes(size)
    bytes_ = int(size_S.sum()) * 2 * size.dim
    with tempfile.TemporaryDirectory() as name:
        folder, needed = Path(name), int(1.2 * len(formats) * bytes_)
        if (free := shutil.disk_usage(folder).free) < needed:
            raise InputError(
                f"{folder.parent}: {free / 1e9:.1f} GB are free and {needed / 1e9:.1f} GB needed; free some, or have "
                "TMPDIR name another folder"
            )
        for one in formats:
            place(folder, one).mkdir(exist_ok=True)
            one.write(place(folder, one), size_S, size.dim)
        yield folder, f"{size.sets:,} sets, {bytes_ / 1e6:,.0f} MB"


def sizes(size: ColdSize) -> np.ndarray:
    """Return how many vectors each set has."""
    return np.random.default_rng(0).integers(10, 37, size.sets)


def place(folder: Path, one: Format) -> Path:
    """Return the folder of a format; those that are written alike share it."""
    return folder / one.write.__name__


def read(formats: Sequence[Format], folder: Path, size: ColdSize) -> dict[str, Reading]:
    """Read the batches of each round in all formats, each from files that are not in memory."""
    found: dict[str, list[tuple[float, float, float]]] = {one.name: [] for one in formats}
    for number in range(size.rounds):
        turn = number % len(formats)
        for one in (*formats[turn:], *formats[:turn]):
            at = place(folder, one)
            forget(path for path in at.rglob("*") if path.is_file())
            # not kept in a variable: what still maps a file keeps it in memory
            timed = _timed(one.batches(at, sizes(size), size.dim, size.rows(number)), size.unmeasured)
            found[one.name].append(timed)
    return {
        name: Reading(rate_R=rate_R, asked_R=asked_R, read_R=read_R)
        for name, (rate_R, asked_R, read_R) in ((name, np.array(timed).T) for name, timed in found.items())
    }


def _timed(batches: Batches, unmeasured: int) -> tuple[float, float, float]:
    """Return MB/s, MB of sets and MB read from disks for all batches but the first ones."""
    asked, before, started = 0, read_from_disks(), time.perf_counter()
    for number, (x_BND, mask_BN) in enumerate(batches, start=1):
        asked += int(mask_BN.sum()) * x_BND.shape[2] * x_BND.element_size()
        if number == unmeasured:
            asked, before, started = 0, read_from_disks(), time.perf_counter()
    took = time.perf_counter() - started
    return asked / took / 1e6, asked / 1e6, (read_from_disks() - before) / 1e6
