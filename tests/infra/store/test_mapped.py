from __future__ import annotations

import gc
import mmap
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from stores import flip, make_sets, write

from polypool.infra.errors import InputError
from polypool.infra.store import FeatureStore
from polypool.infra.store import shard as shards
from polypool.infra.store.shard import TRIAL_EVERY, Prefetcher


def assert_reads(store: FeatureStore, sets: dict[str, np.ndarray]) -> None:
    x_BND, mask_BN = store.padded(store.rows(list(sets)))
    for x_ND, mask_N, expected_ND in zip(x_BND.numpy(), mask_BN.numpy(), sets.values(), strict=True):
        assert np.array_equal(x_ND[mask_N], expected_ND.astype(np.float16))


def test_store_reads_and_verifies_without_fadvise(small, monkeypatch):
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    for name in ("MADV_RANDOM", "MADV_SEQUENTIAL"):
        monkeypatch.setattr(mmap, name, 1 << 20)  # unknown to every system
    store = FeatureStore.open(small)
    assert_reads(store, make_sets(7))
    store.verify()
    shard, _ = store.locate(0)
    flip(shard.path, shard.vectors_at)
    with pytest.raises(InputError, match=r"'id0' .* changed since they were written"):
        FeatureStore.open(small).padded(np.arange(7))


@pytest.fixture
def few_files() -> Iterator[int]:
    """Set a low soft limit of open files; yield the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4000:
        pytest.skip("this system allows no more files")
    opened = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 60, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_more_shards_than_the_open_file_limit_are_read(tmp_path, few_files):
    sets = make_sets(90)
    assert len(write(tmp_path / "store", sets, shard_bytes=1).shards) > 60
    assert_reads(FeatureStore.open(tmp_path / "store"), sets)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="this system does not list open files")
def test_files_close_after_store_and_views_are_deleted(folder):
    def opened() -> int:
        return sum(
            str(folder) in os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()
        )

    store = FeatureStore.open(folder)
    x_ND, view_ND = store[0].copy(), store[0]
    assert opened() > 0
    del store
    assert np.array_equal(view_ND, x_ND)  # a view outlives its store
    del view_ND
    gc.collect()
    assert opened() == 0


class Disk:
    """Eight parts, some of them in memory; reading any other counts as a wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.memory: set[int] = set()
        self.fetched: list[int] = []
        self.waits = 0
        self.prefetched = Prefetcher(self._fetch)
        monkeypatch.setattr(shards, "disk_waits", lambda: self.waits)
        assert [self.read() for _ in range(TRIAL_EVERY)] == [(list(range(8)), 0)] * TRIAL_EVERY

    def _fetch(self, part: int) -> None:
        self.fetched.append(part)
        self.memory.add(part)

    def read(self) -> tuple[list[int], int]:
        """Read a batch; return the fetched parts and the number of waits."""
        self.fetched, before, touched = [], self.waits, []
        for part in self.prefetched(range(8)):
            self.waits += part not in self.memory
            self.memory.add(part)
            touched.append(part)
        assert touched == list(range(8))
        return self.fetched, self.waits - before


@pytest.mark.parametrize(("lost", "fetched"), [(0, 1), (1, 2), (2, 4), (3, 4), (4, 8)])
def test_prefetching_resumes_after_a_disk_wait(monkeypatch, lost, fetched):
    disk = Disk(monkeypatch)
    assert [disk.read() for _ in range(3 * TRIAL_EVERY)] == [([], 0)] * (3 * TRIAL_EVERY)
    disk.memory = set(range(lost))
    assert disk.read() == (list(range(fetched, 8)), fetched - lost)
    if fetched < 8:
        assert [disk.read() for _ in range(TRIAL_EVERY)] == [(list(range(8)), 0)] * TRIAL_EVERY
    assert disk.read() == ([], 0)
