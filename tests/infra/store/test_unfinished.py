from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from stores import DIM, SHARD_BYTES, contents, crash_after, go_on

from polypool.infra.store import FeatureStore, unfinished
from polypool.infra.store.unfinished import DRAFT
from polypool.infra.store.writer import StoreWriter


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft after every set."""
    monkeypatch.setattr(unfinished, "DRAFT_SECONDS", 0.0)


@pytest.mark.parametrize("count", [1, 5, 23, 40])
def test_a_killed_writer_loses_no_set(folder: Path, sets: dict[str, np.ndarray], at_once, count: int) -> None:
    other = folder.parent / "other"
    crash_after(other, sets, count)
    with StoreWriter(other, dim=DIM, source={"made": "here"}, shard_bytes=SHARD_BYTES) as writer:
        assert [id in writer.done for id in sets] == [n < count for n in range(len(sets))]
        for id, x_ND in sets.items():
            assert writer.offer(id, x_ND, where=id) is None
    assert contents(other) == contents(folder), "byte for byte, and nothing is left over"


def test_it_is_kept_once_a_minute(folder: Path, sets: dict[str, np.ndarray], monkeypatch) -> None:
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


def test_a_damaged_one_or_one_whose_shard_was_finished_is_dropped(
    folder: Path, sets: dict[str, np.ndarray], at_once
) -> None:
    other = folder.parent / "other"
    crash_after(other, sets, 5)
    whole = (other / DRAFT).read_bytes()
    at = whole.index(sets["id1"].astype(np.float16).tobytes())
    flipped = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    for damaged in (whole[: len(whole) // 2], b"", whole[:-200] + bytes(100) + whole[-100:], flipped):
        (other / DRAFT).write_bytes(damaged)
        writer = StoreWriter(other, dim=DIM, source={"made": "here"}, shard_bytes=SHARD_BYTES)
        assert not writer.done
        writer._release()
    (other / DRAFT).write_bytes(whole)
    go_on(other, sets)
    assert contents(other) == contents(folder)

    again = folder.parent / "again"
    crash_after(again, sets, 23)
    (again / DRAFT).write_bytes(whole)  # of the first shard, which is finished by now
    go_on(again, sets)
    assert contents(again) == contents(folder)


def test_what_is_odd_about_its_sets_is_not_forgotten(tmp_path: Path, at_once) -> None:
    zeros, ones = np.zeros((2, DIM), np.float32), np.ones((2, DIM), np.float32)
    crash_after(tmp_path / "store", {"empty": zeros, "full": ones}, 2)
    with StoreWriter(tmp_path / "store", dim=DIM, source={"made": "here"}, shard_bytes=SHARD_BYTES) as writer:
        writer.add("more", ones)
    manifest = FeatureStore.open(tmp_path / "store").manifest
    assert manifest.flagged["count"] == 1
    assert "empty" in (tmp_path / "store" / "warnings.jsonl").read_text()


def test_another_job_begins_without_it(tmp_path: Path, sets: dict[str, np.ndarray], at_once) -> None:
    crash_after(tmp_path / "store", sets, 3)
    assert (tmp_path / "store" / DRAFT).exists()
    writer = StoreWriter(tmp_path / "store", dim=DIM, source={"made": "elsewhere"})
    assert not writer.done
    assert not (tmp_path / "store" / DRAFT).exists()
