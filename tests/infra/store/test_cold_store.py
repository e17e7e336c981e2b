"""Disk reads of a store, counted by the system: the requested sets, in parallel, and little more."""

from __future__ import annotations

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
    not Path("/proc/self/io").exists(), reason="/proc/self/io, which counts bytes read, does not exist"
)


def read_from_disk() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def waits() -> int:
    """Return the number of page faults of this process that waited for the disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    """A store outside the page cache; the code that reads it is in memory."""
    x_ND = np.random.default_rng(0).normal(size=(SIZE, DIM)).astype(np.float16)
    with StoreWriter(tmp_path, dim=DIM, source={}) as writer:
        for number in range(SETS):
            writer.add(str(number), x_ND)
    store = FeatureStore.open(tmp_path)
    store.padded(np.arange(4))
    del store
    for path in tmp_path.glob("shard-*"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return tmp_path


def read_since(before: int, *, least: int) -> int:
    """Return the bytes read from the disk; skip the test if the page cache held some of the files."""
    if (read := read_from_disk() - before) < least:
        pytest.skip("these files stay in memory")
    return read


def test_opening_and_batch_read_little_beyond_the_sets(cold):
    rows = np.random.default_rng(1).permutation(SETS)[:40]
    before, waited = read_from_disk(), waits()
    x_BND, _ = FeatureStore.open(cold).padded(rows)
    assert read_since(before, least=x_BND.nbytes) < 1.3 * x_BND.nbytes
    assert waits() - waited < len(rows) / 2  # for the first sets only, not for each page


def test_full_read_does_not_wait_for_each_page(cold):
    store, before, waited = FeatureStore.open(cold), read_from_disk(), waits()
    store.verify()
    assert read_since(before, least=SETS * SIZE * DIM * 2)
    assert waits() - waited < PAGES / 8
