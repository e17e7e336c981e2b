from __future__ import annotations

import functools
import gc
import json
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from object_storage import Bucket, Fault, cut, damaged
from stores import flip, make_sets, write

from polypool.infra.errors import InputError
from polypool.infra.storage import cache
from polypool.infra.store import FeatureStore, remote_shards
from polypool.infra.store.manifest import Manifest, _check_of


@pytest.fixture
def url(bucket: Bucket, folder: Path) -> str:
    """The URL of a store of several shards."""
    return bucket.put(folder, "data/store")


def test_a_remote_store_is_the_same_store(url, folder, bucket):
    here, there = FeatureStore.open(folder), FeatureStore.open(url)
    assert len(here.manifest.shards) > 3
    assert [each.key for each in bucket.asked()] == [f"/{bucket.name}/data/store/manifest.json"]
    assert str(there.folder) == url
    old = Path(__file__).parent / "version1"
    of_version_1 = FeatureStore.open(old), FeatureStore.open(bucket.put(old, "old"))
    for ours, theirs in ((there, here), of_version_1):
        assert (ours.digest, len(ours)) == (theirs.digest, len(theirs))
        assert ours.ids.equals(theirs.ids)
        row_B = np.random.default_rng(0).permutation(len(ours))
        for x, reference in zip(ours.padded(row_B), theirs.padded(row_B), strict=True):
            assert torch.equal(x, reference)
        assert np.array_equal(ours.sizes(row_B), theirs.sizes(row_B))
        assert np.array_equal(pickle.loads(pickle.dumps(ours))[3], theirs[3])
        ours.verify()


def large(folder: Path, count: int = 64, width: int = 512) -> dict[str, np.ndarray]:
    """Write a store of one shard whose sets are each a piece, and a bit, and return them."""
    random = np.random.default_rng(0)
    rows = remote_shards.PIECE // (2 * width)
    sets = {f"id{n}": random.standard_normal((rows + 1, width)).astype(np.float16) for n in range(count)}
    write(folder, sets, dim=width, shard_bytes=256 << 20)
    return sets


def test_few_sets_cost_few_bytes_and_none_the_second_time(bucket, tmp_path):
    sets = large(tmp_path / "large")
    url, size = bucket.put(tmp_path / "large", "large"), next(iter(sets.values())).nbytes
    store = FeatureStore.open(url)
    rows = store.rows(["id3", "id40", "id4"])
    around = bucket.server.sent
    assert around < size // 4
    x_BND, _ = store.padded(rows)
    for x_ND, id in zip(x_BND.numpy(), ["id3", "id40", "id4"], strict=True):
        assert np.array_equal(x_ND, sets[id])
    assert bucket.server.sent - around == 3 * size
    assert len(bucket.asked("shard-00000.arrow")) == 2 + 2  # neighbours come in one request
    again = FeatureStore.open(url)
    sent = bucket.server.sent
    again.padded(again.rows(["id4", "id40"]))
    assert bucket.server.sent == sent
    assert sum(path.stat().st_blocks * 512 for path in cache.folder().glob("shards/*")) < 8 * size


def test_what_was_announced_is_not_asked_for_again(bucket, tmp_path):
    sets = large(tmp_path / "large", 12)
    store = FeatureStore.open(bucket.put(tmp_path / "large", "large"))
    rows, answer = store.rows([f"id{n}" for n in range(0, 12, 2)]), threading.Event()

    def slow(body: bytes) -> Iterator[bytes]:
        answer.wait()
        yield body

    bucket.server.faults.append(Fault(spoil=slow, key="arrow", times=len(rows)))
    coming = store.fetch_ahead(rows)
    assert len(coming) == len(rows)
    assert set(store.fetch_ahead(rows[1:])) == set(coming[1:])
    answer.set()
    assert np.array_equal(store.padded(rows)[0][-1].numpy(), sets["id10"])
    assert all(future.done() for future in coming)
    assert len(bucket.asked("arrow")) == 2 + len(rows)  # what is around the vectors, and each set once
    assert not store.fetch_ahead(rows)


def test_a_request_that_was_cancelled_is_made_by_who_needs_it(bucket, tmp_path, monkeypatch):
    sets, cancelled = large(tmp_path / "large", 10), []
    store = FeatureStore.open(bucket.put(tmp_path / "large", "large"))
    rows, finish = store.rows([f"id{n}" for n in range(0, 10, 2)]), remote_shards.finish

    def cancel(futures: Sequence[Future]) -> None:
        if not cancelled:  # the first time
            cancelled.extend(future for future in futures[::-1] if future.cancel())
        finish(futures)

    monkeypatch.setattr(remote_shards, "finish", cancel)
    monkeypatch.setattr(remote_shards, "_requests", functools.cache(lambda: ThreadPoolExecutor(1)))
    assert np.array_equal(store.padded(rows)[0][-1].numpy(), sets["id8"])
    assert cancelled


def test_threads_and_stores_share_what_each_has_fetched(bucket, tmp_path):
    large(tmp_path / "large", 16)
    url = bucket.put(tmp_path / "large", "large")
    begin, rows = threading.Barrier(4), np.arange(16)

    def read(store: FeatureStore) -> torch.Tensor:
        begin.wait()
        return store.padded(rows)[0]

    with ThreadPoolExecutor(4) as pool:
        done = [*pool.map(read, [FeatureStore.open(url) for _ in range(4)])]
    assert all(torch.equal(x_BND, done[0]) for x_BND in done)
    ranges = [each.range for each in bucket.asked("shard-00000.arrow")]
    assert len(ranges) == len(set(ranges))


FAULTS: dict[str, Callable[[], Fault]] = {
    "a 503": lambda: Fault(key="arrow", times=3),
    "cut at once": lambda: Fault(spoil=cut(0), key="arrow", times=3),
    "cut in the middle": lambda: Fault(spoil=cut(100), key="arrow", times=4),
    "a bit": lambda: Fault(spoil=damaged(50), key="arrow", times=3),
    "the size": lambda: Fault(method="HEAD", key="arrow", times=3),
    "the manifest": lambda: Fault(spoil=cut(20), key="manifest.json", times=3),
}


@pytest.mark.parametrize("name", FAULTS)
def test_an_answer_that_is_spoilt_is_asked_for_again_and_then_one_clear_error(
    name, url, folder, bucket, monkeypatch
):
    row_B = np.arange(len(FeatureStore.open(folder)))
    expected = FeatureStore.open(folder).padded(row_B)[0]
    fault, stays = FAULTS[name](), FAULTS[name]()
    with monkeypatch.context() as patch:
        patch.setattr("polypool.infra.storage.remote.ATTEMPTS", 2)
        stays.times = 10_000
        bucket.server.faults.append(stays)
        with pytest.raises(InputError, match=r"s3://.*: cannot be read, tried 2 times: ") as failed:
            FeatureStore.open(url).padded(row_B[:8])
    assert "\n" not in str(failed.value)
    assert len(bucket.server.requests) < 200
    bucket.server.faults[:] = [fault]
    there = FeatureStore.open(url)
    assert torch.equal(there.padded(row_B)[0], expected), "nothing bad is left"
    there.verify()
    assert fault.times == 0


def test_a_set_that_comes_damaged_is_not_kept(bucket, tmp_path):
    sets = large(tmp_path / "large", 3)
    url = bucket.put(tmp_path / "large", "large")
    store = FeatureStore.open(url)
    rows = store.rows(["id1"])
    fault = Fault(spoil=damaged(1000), key="arrow", times=1)
    bucket.server.faults.append(fault)
    assert np.array_equal(store.padded(rows)[0][0].numpy(), sets["id1"])
    assert fault.times == 0
    fault.times = 99
    with pytest.raises(InputError, match="tried 6 times: the set 'id2' is not the one that was written"):
        store[2]
    fault.times = 0
    assert np.array_equal(FeatureStore.open(url)[2], sets["id2"])


def test_damage_in_storage_and_in_the_cache_is_told_apart(url, bucket, folder):
    store = FeatureStore.open(url)
    x_ND = store[0].copy()
    (kept,) = cache.folder().glob("shards/*")
    flip(kept, kept.read_bytes().index(x_ND.tobytes()))
    with pytest.raises(InputError, match="in the cache was damaged and is removed"):
        FeatureStore.open(url)[0]
    assert np.array_equal(FeatureStore.open(url)[0], x_ND)
    name = store.manifest.shards[1].file
    path = folder / name
    path.write_bytes(bytes(path.stat().st_size))
    bucket.put(folder, "data/store")
    with pytest.raises(InputError, match=f"{name}: cannot be read, .* are not those that were written"):
        FeatureStore.open(url).ids.to_pylist()


def test_a_manifest_cannot_name_places_or_take_another_stores_shards(url, bucket, folder):
    store = FeatureStore.open(url)
    expected = store[0].copy()
    text = bucket.read("data/store/manifest.json").decode()
    outside = text.replace(store.manifest.shards[0].sha256, "../../outside")
    data = json.loads(outside)
    del data["check"]
    Manifest._of(data | {"check": _check_of(data)}).write(folder)
    assert np.array_equal(FeatureStore.open(bucket.put(folder, "other"))[0], expected)
    names = sorted(path.name for path in cache.folder().glob("shards/*"))
    assert len(names) == 2
    assert not [*cache.folder().parent.glob("**/outside*")]


def test_what_is_missing_or_of_another_size_is_named(url, bucket, folder):
    def refused(message: str) -> None:
        with pytest.raises(InputError, match=message):
            FeatureStore.open(url).ids.to_pylist()

    with (folder / "shard-00000.arrow").open("ab") as file:
        file.write(b"more")
    bucket.put(folder, "data/store")
    refused(r"shard-00000.arrow: has [\d,]+ bytes, not")
    for name, why in (
        ("shard-00000.arrow", "shard-00000.arrow: no such file"),
        ("manifest.json", "not a complete"),
    ):
        bucket.system.delete_file(f"{bucket.name}/data/store/{name}")
        refused(why)


def test_the_cache_keeps_to_its_bound_and_readers_go_on(bucket, tmp_path, monkeypatch):
    sets = {id: np.tile(x_ND, (60, 1)) for id, x_ND in make_sets(200).items()}
    shards = write(tmp_path / "many", sets, shard_bytes=64 << 10).shards
    most = sum(shard.bytes for shard in shards) // 3
    monkeypatch.setenv("POLYPOOL_CACHE_GB", str(most / 1e9))
    store = FeatureStore.open(bucket.put(tmp_path / "many", "many"))
    held = store[0]
    for row_B in np.random.default_rng(0).permutation(200).reshape(20, 10)[:12]:
        x_BND, mask_BN = store.padded(row_B)
        for x_ND, mask_N, row in zip(x_BND.numpy(), mask_BN.numpy(), row_B, strict=True):
            assert np.array_equal(x_ND[mask_N], sets[f"id{row}"].astype(np.float16))
        assert sum(path.stat().st_blocks * 512 for path in cache.folder().glob("shards/*")) <= most * 1.5
    assert np.array_equal(held, sets["id0"].astype(np.float16))
    assert bucket.server.sent > 2 * most


def test_a_shard_that_the_cache_deleted_is_let_go_of(url):
    store = FeatureStore.open(url)
    held, shard = store[0], weakref.ref(store._mapped[0])
    (kept,) = cache.folder().glob("shards/*")
    before = held.copy()
    kept.unlink()
    store[1]
    assert np.array_equal(held, before)
    del held
    gc.collect()
    assert shard() is None
    assert kept.exists()
    assert np.array_equal(store[0], before)
