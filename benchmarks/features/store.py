"""The feature store: time of batches against numpy and h5py, cost of checks, and memory as a store grows tenfold."""

from __future__ import annotations

import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import h5py
import numpy as np
import torch

from benchmarks.features.formats import Padded, ends, hdf5_bytes, loop, write_hdf5
from benchmarks.measure import Measurement, Scale, Sides, Size, apart, by_turns, memory, seconds
from benchmarks.random_data import feature_store
from polypool.infra.store import FeatureStore


@dataclass(frozen=True, kw_only=True)
class StoreSize(Size):
    """How much is read: `sets` of 10 to 36 vectors; in each round as many `batches` of `batch` sets.

    An epoch, in which sets are checked, reads each of them once for each of its `captions`.
    """

    quick: ClassVar = {"sets": 800, "batches": 5, "rounds": 7}
    tiny: ClassVar = {"sets": 40, "dim": 16, "batch": 8, "batches": 2, "rounds": 3}
    sets: int = 3200
    dim: int = 2048
    batch: int = 128
    batches: int = 20
    captions: int = 5
    rounds: int = 11


def store(scale: Scale = "full") -> list[Measurement]:
    """Measure the time of a batch against a numpy memmap and against h5py."""
    size = StoreSize.of(scale)
    with tempfile.TemporaryDirectory() as name:
        folder, rng = Path(name), np.random.default_rng(0)
        size_S = rng.integers(10, 37, size.sets)
        ours = feature_store(folder / "store", size_S, dim=size.dim)
        end_S1 = ends(size_S)
        write_hdf5(folder, size_S, size.dim)
        path, start = hdf5_bytes(folder)
        mapped = np.memmap(path, np.float16, "r", start).reshape(-1, size.dim)
        with h5py.File(path, "r") as file:
            note = f"{size.sets:,} sets, {mapped.nbytes / 1e6:,.0f} MB, page cache warm. "
            against_numpy = _compare(ours, loop(np.asarray(mapped), end_S1), size)
            against_h5py = _compare(ours, loop(file["features"], end_S1), size)
        against_none = by_turns(
            lambda n: _first_epoch(folder / "store", n, size, checked=True),
            lambda n: _first_epoch(folder / "store", n, size, checked=False),
            rounds=size.rounds,
        ).numbers()
    measured = f"a batch of {size.batch} sets of 10-36 x {size.dim} float16, padded"
    return [
        Measurement(
            name="store / numpy memmap",
            measured=measured,
            unit="ms",
            target=0.9,
            note=note + "Reference: one slice a set of a memmap into a zeroed tensor.",
            **against_numpy,
        ),
        Measurement(
            name="store / h5py",
            measured=measured,
            unit="ms",
            target=2.0,
            note=note + "Reference: one slice a set of one contiguous dataset into a zeroed tensor.",
            **against_h5py,
        ),
        Measurement(
            name="store, checked / unchecked",
            measured=f"processor time of {measured}, in the first epoch after opening",
            unit="ms",
            goal="at most",
            target=1.05,
            note=f"Every set is read {size.captions} times, as often as it has captions, and checked at the first. "
            "Later epochs check nothing. Reference: as if all sets had been checked before.",
            **against_none,
        ),
    ]


def _compare(ours: FeatureStore, reference: Padded, size: StoreSize) -> dict:
    """Time both on the same batches, after every set was read through both and the results were compared."""

    def read(padded: Padded, number: int) -> float:
        row_KB = np.random.default_rng(number + 1).integers(len(ours), size=(size.batches, size.batch))
        return 1e3 * seconds(lambda: deque(map(padded, row_KB), maxlen=0)) / size.batches

    for row_B in np.array_split(np.arange(len(ours)), max(1, len(ours) // size.batch)):
        assert all(map(torch.equal, ours.padded(row_B), reference(row_B)))
    sides = by_turns(lambda n: read(ours.padded, n), lambda n: read(reference, n), rounds=size.rounds)
    return sides.numbers(invert=True)


def _first_epoch(folder: Path, number: int, size: StoreSize, *, checked: bool) -> float:
    """Open a store and return the processor's milliseconds for a batch, over an epoch."""
    opened = FeatureStore.open(folder)
    row_S = np.random.default_rng(number).permutation(np.repeat(np.arange(len(opened)), size.captions))
    for row in range(len(opened)):
        shard, local = opened.place(row)
        shard.trusted[local] = not checked
    parts = [row_S[start : start + size.batch] for start in range(0, len(row_S), size.batch)]
    started = time.thread_time()
    deque(map(opened.padded, parts), maxlen=0)
    return 1e3 * (time.thread_time() - started) / len(parts)


@dataclass(frozen=True, kw_only=True)
class GrowthSize(Size):
    """The small store has `sets` of 36 vectors; from both stores as many `batches` of `batch` sets are read."""

    tiny: ClassVar = {"sets": 50, "vectors": 8, "dim": 64, "batch": 8, "batches": 5, "rounds": 1}
    sets: int = 680
    vectors: int = 36
    dim: int = 2048
    batch: int = 128
    batches: int = 60


def store_memory(scale: Scale = "full") -> list[Measurement]:
    """Measure the growth of a fresh process's own memory while it reads a store, and one ten times as large."""
    size = GrowthSize.of(scale)
    with tempfile.TemporaryDirectory() as name:
        folders = {times: Path(name) / str(times) for times in (10, 1)}
        stores = {
            times: feature_store(folder, np.full(size.sets * times, size.vectors), dim=size.dim)
            for times, folder in folders.items()
        }
        calls = [(folder, size.batches, size.batch) for folder in folders.values()]
        found_R2K = np.array([apart(read, calls) for _ in range(size.rounds)])
        large, small = (
            sum(shard.bytes for shard in store.manifest.shards) / 1e6 for store in stores.values()
        )
    own_R2, (file_large, file_small) = found_R2K[..., 0], np.median(found_R2K[..., 1], axis=0)
    return [
        Measurement(
            name="store memory / 10x",
            measured=f"largest growth of anonymous memory over {size.batches} batches of {size.batch} sets",
            unit="MB",
            goal="at most",
            target=1.25,
            note=f"Ours: a store of {large:,.0f} MB; reference: of {small:,.0f} MB. A batch takes "
            f"{size.batch * size.vectors * size.dim * 2 / 1e6:.0f} MB. Pages of the files that were mapped: "
            f"{file_large:,.0f} and {file_small:,.0f} MB; they belong to the page cache and are given back on demand.",
            **Sides(ours_R=own_R2[:, 0], reference_R=own_R2[:, 1]).numbers(),
        )
    ]


def read(folder: Path, batches: int, batch: int) -> tuple[float, float]:
    """Read random batches as training does; return the growth of anonymous and of file memory in MB."""
    before, rng, most = memory(), np.random.default_rng(0), 0.0
    store = FeatureStore.open(folder)
    row_S = store.rows([str(number) for number in range(len(store))])
    for _ in range(batches):
        x_BND, _ = store.padded(rng.choice(row_S, batch))
        most = max(most, memory()["RssAnon"])
        del x_BND
    return most - before["RssAnon"], memory()["RssFile"] - before["RssFile"]
