from __future__ import annotations

import pickle
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from places import ROOT
from stores import DIM, SHARD_BYTES, write

from polypool.infra.errors import InputError
from polypool.infra.store import FeatureStore, StoreWriter
from polypool.infra.store.shard import MappedShard, map_shard


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_store_round_trips(tmp_path, sets, dtype):
    manifest = write(tmp_path / "store", sets, dtype=dtype)
    store = FeatureStore.open(tmp_path / "store")
    assert len(manifest.shards) > 3
    assert len(store) == manifest.sets == len(sets)
    assert store.ids.to_pylist() == list(sets)
    assert (store.dim, store.dtype) == (DIM, dtype)
    for row, x_ND in enumerate(sets.values()):
        assert store[row].dtype == dtype
        assert np.array_equal(store[row], x_ND.astype(dtype))
    assert store.sizes(np.arange(len(sets))).tolist() == [len(x_ND) for x_ND in sets.values()]
    store.verify()


def test_shards_are_plain_arrow_files_of_bounded_size(folder):
    shards = FeatureStore.open(folder).manifest.shards
    kind = "large_list<item: fixed_size_list<item: halffloat>[12]"
    for shard in shards:
        with pa.ipc.open_file(folder / shard.file) as file:
            assert file.num_record_batches == 1
            assert str(file.schema.field("features").type).startswith(kind)
        assert shard.vectors * DIM * 2 <= SHARD_BYTES
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["manifest.json", *(shard.file for shard in shards)]


def test_sets_are_views_of_the_mapped_file(folder):
    store = FeatureStore.open(folder)
    x_ND = store[7]
    assert np.shares_memory(x_ND, store[7])
    assert not x_ND.flags.writeable
    assert not store._shard(0).offsets.flags.owndata


def test_rows_follow_the_requested_ids(folder, sets):
    store = FeatureStore.open(folder)
    wanted = ["id31", "id0", "id31", "id17"]
    rows = store.rows(wanted)
    assert rows.dtype == np.int64
    assert rows.tolist() == [31, 0, 31, 17]
    assert store.rows([]).shape == (0,)
    with pytest.raises(InputError, match=r"2 of 3 ids have no features; the first: nobody, noone"):
        store.rows(["nobody", "id3", "noone"])


def test_padded_returns_sets_padded_with_zeros(folder, sets):
    store = FeatureStore.open(folder)
    rows = np.random.default_rng(1).permutation(len(sets))[:16]
    np.full((16, 8, DIM), np.nan, "float16")  # freed memory, which must not show in the padding
    x_BND, mask_BN = store.padded(rows)
    assert (x_BND.dtype, mask_BN.dtype) == (torch.float16, torch.bool)
    assert x_BND.shape[:2] == mask_BN.shape
    assert mask_BN.sum(1).tolist() == store.sizes(rows).tolist()
    assert mask_BN.sum(1).max() == mask_BN.shape[1]
    for x_ND, mask_N, row in zip(x_BND, mask_BN, rows, strict=True):
        assert np.array_equal(x_ND[mask_N].numpy(), store[row])
        assert (x_ND[~mask_N] == 0).all()


def test_padded_keeps_the_requested_elements(folder):
    store = FeatureStore.open(folder)
    rows = np.flatnonzero(store.sizes(np.arange(len(store))) >= 4)[:2]
    mask = np.zeros(store.sizes(rows)[1], bool)
    mask[[1, 3]] = True
    x_BND, mask_BN = store.padded(rows, keep=[np.array([2, 0, 3]), mask])
    assert mask_BN.tolist() == [[True, True, True], [True, True, False]]
    assert np.array_equal(x_BND[0].numpy(), store[rows[0]][[2, 0, 3]])
    assert np.array_equal(x_BND[1, :2].numpy(), store[rows[1]][[1, 3]])
    assert (x_BND[1, 2] == 0).all()


def test_threads_map_each_shard_once_and_read_correctly(folder, sets, monkeypatch):
    mapped = []

    def slowly(path: Path, *args: object, **options: object) -> MappedShard:
        mapped.append(path)
        time.sleep(0.02)
        return map_shard(path, *args, **options)

    monkeypatch.setattr("polypool.infra.store.feature_store.map_shard", slowly)
    store = FeatureStore.open(folder)
    rows = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sets)), 8)).reshape(-1, 4)
    with ThreadPoolExecutor(8) as pool:
        for row_B, (x_BND, mask_BN) in zip(rows, pool.map(store.padded, rows), strict=True):
            for row, x_ND, mask_N in zip(row_B, x_BND.numpy(), mask_BN.numpy(), strict=True):
                assert np.array_equal(x_ND[mask_N], sets[f"id{row}"].astype(np.float16))
    assert len(mapped) == len(store.manifest.shards)


def test_pickled_store_contains_only_its_path(folder):
    store = FeatureStore.open(folder)
    store[0]
    data = pickle.dumps(store)
    assert len(data) < 1000
    assert np.array_equal(pickle.loads(data)[5], store[5])


READ_ALL = """
import sys
import numpy as np
from polypool.infra.store import FeatureStore, StoreWriter

def own():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

for folder in sys.argv[1:]:
    store = FeatureStore.open(folder)
    store.padded(np.arange(16))
    before = own()
    for start in range(0, len(store), 16):
        store.padded(np.arange(start, min(start + 16, len(store))))
    print(own() - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_store_size(tmp_path):
    x_ND = np.random.default_rng(0).standard_normal((16, 512)).astype(np.float16)
    for count in (300, 3000):
        with StoreWriter(tmp_path / str(count), dim=512, source={}, shard_bytes=8 << 20) as writer:
            for i in range(count):
                writer.add(str(i), x_ND)
    command = [sys.executable, "-c", READ_ALL, str(tmp_path / "300"), str(tmp_path / "3000")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    small, large = (int(line) for line in done.stdout.split())
    assert large - small < 4096  # kB; the stores differ by 43,000
