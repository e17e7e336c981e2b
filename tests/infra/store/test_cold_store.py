"""What a store reads from a disk, counted by the system: the sets asked for, and little around them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from infra.store import FeatureStore, StoreWriter

SETS, SIZE, DIM = 400, 20, 1024  # 16 MB; a set is 40 kB


def read_from_disk() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def forget(folder: Path) -> None:
    """Have the system drop what it has of the files in memory."""
    for path in folder.glob("shard-*"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.mark.skipif(
    not Path("/proc/self/io").exists(), reason="this system does not count what a process reads"
)
def test_a_batch_reads_its_sets_and_little_around_them(tmp_path):
    x_ND = np.random.default_rng(0).normal(size=(SIZE, DIM)).astype(np.float16)
    with StoreWriter(tmp_path, dim=DIM, dtype="float16", source={}) as writer:
        for number in range(SETS):
            writer.add(str(number), x_ND)
        writer.close()
    store, rows = FeatureStore.open(tmp_path), np.random.default_rng(1).permutation(SETS)[:40]
    store.padded(rows[:1])
    forget(tmp_path)
    before = read_from_disk()
    x_BND, _ = store.padded(rows)
    read = read_from_disk() - before
    if read == 0:
        pytest.skip("these files are not on a disk")
    assert read < 1.4 * x_BND.nbytes
