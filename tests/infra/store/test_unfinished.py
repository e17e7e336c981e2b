from __future__ import annotations

import numpy as np
import pytest
from stores import DIM, contents, crash_after, fill, make_sets, store_writer, write

from polypool.infra.errors import InputError
from polypool.infra.store import FeatureStore, StoreWriter, unfinished
from polypool.infra.store.unfinished import DRAFT


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save a draft after every set."""
    monkeypatch.setattr(unfinished, "DRAFT_SECONDS", 0.0)


@pytest.mark.parametrize(("drafts", "count"), [(False, 23), (True, 1), (True, 23)])
def test_resume_after_kill_is_byte_identical(folder, sets, monkeypatch, drafts, count):
    other = folder.parent / "other"
    monkeypatch.setattr(unfinished, "DRAFT_SECONDS", 0.0 if drafts else 60.0)
    crash_after(other, sets, count)
    with pytest.raises(InputError, match="not a complete feature store"):
        FeatureStore.open(other)
    with store_writer(other) as writer:
        done = count if drafts else len(writer.done)
        assert [id in writer.done for id in sets] == [n < done for n in range(len(sets))]
        assert done
        for id, x_ND in sets.items():
            assert writer.offer(id, x_ND, where=id) is None
    assert contents(other) == contents(folder), "a resumed store must be identical, without leftover files"


def test_draft_is_saved_once_a_minute(folder, sets, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(unfinished.time, "monotonic", lambda: now[0])
    path = folder.parent / "other" / DRAFT
    writer = StoreWriter(path.parent, dim=DIM, source={})
    first, second, third, *_ = sets.items()
    writer.add(*first)
    assert not path.exists()
    now[0] = 60.0
    writer.add(*second)
    kept = path.read_bytes()
    now[0] = 119.0
    writer.add(*third)
    assert path.read_bytes() == kept
    writer.close()
    assert not path.exists()


def test_draft_of_another_extraction_is_refused(folder, sets, at_once):
    other, source = folder.parent / "other", {"extractor": {"name": "a"}, "limit": 9}
    crash_after(other, sets, 5, source=source)
    draft = (other / DRAFT).read_bytes()
    with pytest.raises(InputError, match=r"unfinished work of another job .*Repeat that job to resume it"):
        StoreWriter(other, dim=DIM, source=source | {"limit": 8})
    assert (other / DRAFT).read_bytes() == draft


def test_damaged_or_outdated_draft_is_dropped(folder, sets, at_once):
    other = folder.parent / "other"
    crash_after(other, sets, 5)
    whole = (other / DRAFT).read_bytes()
    at = whole.index(sets["id1"].astype(np.float16).tobytes())
    flipped = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    for damaged in (whole[: len(whole) // 2], b"", whole[:-200] + bytes(100) + whole[-100:], flipped):
        (other / DRAFT).write_bytes(damaged)
        writer = store_writer(other)
        assert not writer.done
        writer._release()
    (other / DRAFT).write_bytes(whole)
    write(other, sets)
    assert contents(other) == contents(folder)

    again = folder.parent / "again"
    crash_after(again, sets, 23)
    (again / DRAFT).write_bytes(whole)  # draft of the first shard, which is finished by now
    write(again, sets)
    assert contents(again) == contents(folder)


def test_draft_keeps_warnings(tmp_path, at_once):
    zeros, ones = np.zeros((2, DIM), np.float32), np.ones((2, DIM), np.float32)
    crash_after(tmp_path / "store", {"empty": zeros, "full": ones}, 2)
    with store_writer(tmp_path / "store") as writer:
        writer.add("more", ones)
    manifest = FeatureStore.open(tmp_path / "store").manifest
    assert manifest.flagged["count"] == 1
    assert "empty" in (tmp_path / "store" / "warnings.jsonl").read_text()


def test_resumed_writer_refuses_duplicate_ids(tmp_path):
    sets = make_sets(30)
    crash_after(tmp_path / "store", sets, 23)
    with store_writer(tmp_path / "store") as writer:
        assert 0 < len(writer.done) < 30
        with pytest.raises(InputError, match="set 'id0': duplicate id"):
            writer.add("id0", sets["id0"])
        for id, again in (("id0", None), ("id0", "duplicate id"), ("id29", None), ("id29", "duplicate id")):
            assert writer.offer(id, sets[id], where=id) == again, (
                "each id may be offered only once after a resume"
            )
        fill(writer, {id: x_ND for id, x_ND in sets.items() if id != "id29"})
        assert all(id in writer for id in sets)


def test_number_of_sets_per_shard_is_bounded(tmp_path, monkeypatch):
    sets = make_sets(10)
    write(tmp_path / "one", sets, shard_bytes=1 << 20)
    monkeypatch.setattr(unfinished, "_MOST_SETS", 4)
    write(tmp_path / "three", sets, shard_bytes=1 << 20)
    one, three = (FeatureStore.open(tmp_path / name) for name in ("one", "three"))
    assert [shard.sets for shard in three.manifest.shards] == [4, 4, 2]
    assert all((one[row] == three[row]).all() for row in range(10))
