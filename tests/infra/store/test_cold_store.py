"""Bytes that a store reads from a disk, counted by the system: the requested sets in parallel, and little more."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
from pathlib import Path

import numpy as np
import pytest

from polypool.infra.store import FeatureStore, StoreWriter

SETS, SIZE, DIM = 400, 20, 1024  # 16 MB; a set is 40 kB, ten pages
PAGES = SETS * SIZE * DIM * 2 // mmap.PAGESIZE

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/io").exists(), reason="this system does not count what a process reads"
)


def read_from_disk() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def waits() -> int:
    """How often the process has touched a page that it then had to wait for."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def forget(folder: Path) -> None:
    """Have the system drop what it has of the shards in memory; skip the test where it does not."""
    for path in folder.glob("shard-*"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if in_memory(path):
            pytest.skip("these files stay in memory")


def in_memory(path: Path) -> int:
    """How many bytes of a file the system has in memory."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        bytes_N = np.frombuffer(mapping, np.uint8)
        state_P = np.zeros(-(-len(bytes_N) // mmap.PAGESIZE), np.uint8)
        address, length = bytes_N.__array_interface__["data"][0], ctypes.c_size_t(len(bytes_N))
        state = ctypes.c_void_p(state_P.__array_interface__["data"][0])
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(address), length, state) == 0
        del bytes_N
    return int((state_P & 1).sum()) * mmap.PAGESIZE


def write_store(folder: Path, *, sets: int = SETS, size: int = SIZE, **options: int) -> None:
    x_ND = np.random.default_rng(0).normal(size=(size, DIM)).astype(np.float16)
    with StoreWriter(folder, dim=DIM, dtype="float16", source={}, **options) as writer:
        for number in range(sets):
            writer.add(str(number), x_ND)
        writer.close()


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    """A store that is on a disk and not in memory, unlike the code that reads it."""
    write_store(tmp_path)
    store = FeatureStore.open(tmp_path)
    store.padded(np.arange(4))
    shard, row = store.place(0)
    assert np.isfinite(shard.view(row)).all()
    del store, shard
    forget(tmp_path)
    return tmp_path


def test_a_batch_reads_its_sets_and_little_around_them_and_so_does_opening(cold):
    rows = np.random.default_rng(1).permutation(SETS)[:40]
    before, waited = read_from_disk(), waits()
    x_BND, _ = FeatureStore.open(cold).padded(rows)
    assert x_BND.nbytes <= read_from_disk() - before < 1.3 * x_BND.nbytes
    assert waits() - waited < len(rows) / 2  # not for any of a set's ten pages, but for the first sets'


def test_who_reads_all_of_a_store_does_not_wait_for_each_page(cold):
    store, before, waited = FeatureStore.open(cold), read_from_disk(), waits()
    store.verify()
    assert read_from_disk() - before > SETS * SIZE * DIM * 2
    assert waits() - waited < PAGES / 8
