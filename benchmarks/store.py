"""Random batches of the feature store against h5py: from memory, from a cold disk, and with more data than memory."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import Tensor

from benchmarks.random_data import feature_sets, feature_store
from benchmarks.side_by_side import apart, compare, run
from polypool.infra.errors import InputError
from polypool.infra.store import FeatureStore

BATCH = 128
Padded = Callable[[np.ndarray], tuple[Tensor, Tensor]]


def write_hdf5(path: Path, size_S: np.ndarray, dim: int) -> None:
    """Write the sets one after another to one contiguous dataset."""
    end_S1 = np.concatenate([[0], size_S.cumsum()])
    with h5py.File(path, "w") as file:
        features = file.create_dataset("features", (int(end_S1[-1]), dim), np.float16)
        for x_ND, start in zip(feature_sets(size_S, dim=dim), end_S1, strict=False):
            features[start : start + len(x_ND)] = x_ND


@contextmanager
def opened(kind: str, folder: Path, size_S: np.ndarray) -> Iterator[Padded]:
    """Open the `store`, or the HDF5 file, read by one slice for each set into zeros; yield a function for batches."""
    if kind == "store":
        yield FeatureStore.open(folder / "store").padded
        return
    end_S1 = np.concatenate([[0], size_S.cumsum()])
    with h5py.File(folder / "sets.hdf5", "r") as file:
        features = file["features"]

        def padded(row_B: np.ndarray) -> tuple[Tensor, Tensor]:
            size_B = size_S[row_B]
            x_BND = np.zeros((len(row_B), int(size_B.max()), features.shape[1]), features.dtype)
            for x_ND, row, size in zip(x_BND, row_B, size_B, strict=True):
                x_ND[:size] = features[end_S1[row] : end_S1[row] + size]
            return torch.from_numpy(x_BND), torch.from_numpy(np.arange(x_BND.shape[1]) < size_B[:, None])

        yield padded


def epoch(kind: str, folder: Path, size_S: np.ndarray, number: int, *, warm_up: int = 0) -> float:
    """Return the MB of sets a second of an epoch, from batch `warm_up` on, without opening the sets."""
    row_S, read, started = np.random.default_rng(number).permutation(len(size_S)), 0, time.perf_counter()
    with opened(kind, folder, size_S) as padded:
        for batch, row_B in enumerate(np.array_split(row_S, max(1, len(row_S) // BATCH))):
            if batch == warm_up:
                read, started = 0, time.perf_counter()
            x_BND, mask_BN = padded(row_B)
            read += int(mask_BN.sum()) * x_BND.shape[2] * x_BND.element_size()
    return read / (time.perf_counter() - started) / 1e6


def cold(kind: str, folder: Path, size_S: np.ndarray, number: int) -> float:
    """Drop the files from the page cache, then read an epoch."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return epoch(kind, folder, size_S, number)


def beyond(kind: str, folder: Path, size_S: np.ndarray, number: int, *, memory_MB: int) -> float:
    """Read an epoch in a fresh process of a control group limited to `memory_MB`, page cache included.

    Raises:
        InputError: no such group can be made here.
    """
    v1 = Path("/sys/fs/cgroup/memory")
    group = (v1 if v1.is_dir() else v1.parent) / f"polypool-{os.getpid()}"
    limit = group / ("memory.limit_in_bytes" if v1.is_dir() else "memory.max")
    try:
        group.mkdir(exist_ok=True)
        limit.write_text(str(memory_MB * 1_000_000))
    except OSError as error:
        raise InputError(f"no control group that limits memory can be made here: {error}") from error
    try:
        return apart(_within, group, kind, folder, size_S, number)
    finally:
        group.rmdir()


def _within(group: Path, kind: str, folder: Path, size_S: np.ndarray, number: int) -> float:
    (group / "cgroup.procs").write_text(str(os.getpid()))
    # in a child process, started in the group: the memory of this one stays charged to its former group
    return apart(partial(epoch, warm_up=len(size_S) // BATCH // 2), kind, folder, size_S, number)


def main(*, quick: bool = False) -> None:
    sets, many, dim, rounds = (300, 400, 16, 1) if quick else (3_200, 18_800, 2048, 5)
    for count, ways in (
        (sets, {"warm": epoch, "cold": cold}),
        (many, {"beyond memory": partial(beyond, memory_MB=900)}),
    ):
        with tempfile.TemporaryDirectory() as name:
            folder, size_S = Path(name), np.random.default_rng(0).integers(10, 37, count)
            feature_store(folder / "store", size_S, dim=dim)
            write_hdf5(folder / "sets.hdf5", size_S, dim)
            rows = np.arange(BATCH)
            with opened("store", folder, size_S) as ours, opened("h5py", folder, size_S) as theirs:
                assert all(map(torch.equal, ours(rows), theirs(rows)))
            for way, read in ways.items():
                sides = (partial(read, kind, folder, size_S) for kind in ("store", "h5py"))
                compare(
                    f"store / h5py, {way}, {count:,} sets of 10-36 x {dim}",
                    *sides,
                    rounds=rounds,
                    unit="MB/s",
                )


if __name__ == "__main__":
    run(main)
