from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from object_storage import Bucket, Fault
from stores import contents, fill, make_sets, store_writer, write

from polypool.infra.errors import InputError
from polypool.infra.storage import cache
from polypool.infra.store import FeatureStore, StoreWriter
from polypool.infra.store.findings import Skipped


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polypool.infra.storage.remote.ATTEMPTS", 3)


def there(bucket: Bucket, below: str = "store") -> dict[str, bytes]:
    return {key.removeprefix(f"{below}/"): bucket.read(key) for key in bucket.keys(below)}


def writer(bucket: Bucket) -> StoreWriter:
    return store_writer(f"{bucket.url}/store")


def few(sets: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return dict(list(sets.items())[:25])


def waiting() -> list[Path]:
    """Return what waits to be sent."""
    return [*(cache.folder() / "writing").glob("*")]


def test_a_store_is_written_as_it_would_be_here(bucket, folder, sets):
    for place in (f"{bucket.url}/store", folder / "here"):
        with store_writer(place) as to:
            fill(to, sets)
            to.note(Skipped(where="a row", why="a reason"))
            manifest = to.close()
    assert there(bucket) == contents(folder / "here")
    assert manifest.digest == FeatureStore.open(f"{bucket.url}/store").digest
    assert not waiting()
    with pytest.raises(InputError, match=r"s3://.*/store: is complete; delete it to write it anew"):
        writer(bucket)


def test_an_interrupted_writer_is_unreadable_and_goes_on(bucket, folder, sets):
    first = writer(bucket)
    fill(first, few(sets))
    first._release()
    assert set(there(bucket)) == {"shard-00000.arrow", "shard-00001.arrow", "writing.json"}
    with pytest.raises(InputError, match=r"s3://.*/store: not a complete feature store"):
        FeatureStore.open(f"{bucket.url}/store")
    sent = len(bucket.asked("shard-00000.arrow", "PUT"))
    assert sent > 0
    second = writer(bucket)
    assert second.done.issuperset(["id0", "id9"])
    assert 2 < len(second.done) < len(sets)
    fill(second, sets)
    second.close()
    assert len(bucket.asked("shard-00000.arrow", "PUT")) == sent
    assert there(bucket) == contents(folder)
    assert not waiting()


def test_what_was_begun_elsewhere_is_refused(bucket, sets, monkeypatch, tmp_path):
    fill(writer(bucket), few(sets))
    monkeypatch.setenv("POLYPOOL_CACHE", str(tmp_path / "another"))
    with pytest.raises(
        InputError, match=r"s3://.*/store: was begun by another machine, or with another"
    ) as refused:
        writer(bucket)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["shard-00001.arrow", "manifest.json", "writing.json"])
def test_a_write_that_fails_is_tried_again_and_then_one_error_and_goes_on(name, bucket, sets, folder):
    lost = Fault(method="PUT", key=name, status="200 OK")
    bucket.server.faults += [Fault(method="PUT", key=name, times=1), lost]
    url = f"{bucket.url}/store"
    write(url, sets)
    assert lost.times == 0
    assert there(bucket) == contents(folder)
    bucket.system.delete_dir(f"{bucket.name}/store")
    fault = Fault(method="PUT", key=name, times=99)
    bucket.server.faults.append(fault)
    with pytest.raises(InputError, match=rf"s3://.*/{name}: cannot be written, tried 3 times") as failed:
        write(url, sets)
    assert "\n" not in str(failed.value)
    assert "manifest.json" not in there(bucket)
    fault.times = 0
    write(url, sets)
    assert there(bucket) == contents(folder)


def test_what_waits_here_of_a_store_that_is_complete_there_goes(bucket, sets, folder):
    writer(bucket)._release()
    assert waiting()
    bucket.put(folder, "store")
    with pytest.raises(InputError, match=r"/store: is complete"):
        writer(bucket)
    assert not waiting()


def test_small_stores_of_one_name_do_not_meet(bucket):
    for below, seed in (("a", 0), ("b", 1)):
        write(f"{bucket.url}/{below}/store", make_sets(3, seed=seed))
    assert len({FeatureStore.open(f"{bucket.url}/{below}/store").digest for below in "ab"}) == 2
