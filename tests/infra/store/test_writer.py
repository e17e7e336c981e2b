from __future__ import annotations

import errno
import json
import os
import shutil

import numpy as np
import pytest
from stores import DIM, SHARD_BYTES, contents, crash_after, flip, make_sets, store_writer, write

from polypool.infra import files
from polypool.infra.errors import InputError
from polypool.infra.store import FeatureStore, StoreWriter
from polypool.infra.store.findings import Skipped
from polypool.infra.store.manifest import Manifest
from polypool.infra.store.writer import Moments

WRONG = [
    (np.ones((2, DIM + 1)), f"width {DIM + 1}, expected {DIM}"),
    (np.ones((0, DIM)), "an empty set"),
    (np.full((2, DIM), np.nan), "NaN or infinite"),
    (np.where(np.arange(DIM) == 3, -np.inf, np.ones((2, DIM))), "NaN or infinite"),
    (np.full((2, DIM), -70000.0), "values beyond 65504, the limit of float16"),
    (np.ones(DIM), "expected numbers of shape"),
    (np.full((2, DIM), "x"), "expected numbers of shape"),
]


def test_invalid_set_error_names_its_id(tmp_path):
    writer = StoreWriter(tmp_path, dim=DIM, source={})
    for x, why in WRONG:
        with pytest.raises(InputError, match=f"'bad': .*{why}"):
            writer.add("bad", x)
        assert why in writer.offer("bad", x, where="line 3")
    writer.add("bad", np.ones((1, DIM)))
    for id, why in {"bad": "'bad': duplicate id", "\ud800": "not valid UTF-8"}.items():
        with pytest.raises(InputError, match=why):
            writer.add(id, np.ones((1, DIM)))
    manifest = writer.close()
    assert (manifest.sets, manifest.skipped["count"]) == (1, len(WRONG))
    assert (tmp_path / "skipped.jsonl").read_text().startswith('{"where": "line 3", "why": ')


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_zero_sets_and_underflow_are_flagged(tmp_path, dtype):
    x = np.zeros((2, DIM), np.float32)
    half = np.r_["0,2", np.full((1, DIM), 1e-9), np.ones((1, DIM))]
    given = {
        "zeros": x,
        "minus zeros": -x.astype(np.float16),
        "tiny": half * 1e-9,
        "a row": half,
        "fine": half + 1,
        "six values of 120": np.r_[np.full((6, 1), 1e-9), np.ones((10 * DIM - 6, 1))].reshape(10, DIM),
        "sparse": np.eye(2, DIM, dtype=np.float16),
    }
    for again in (given, given, ["sparse"]):  # resumed with all stored sets, then with one
        writer = StoreWriter(tmp_path, dim=DIM, dtype=dtype, source={}, shard_bytes=100)
        for id in again:
            writer.offer(id, given[id], where=f"row {id}")
    flagged = writer.close().flagged
    zeros = {"count": 2, "examples": ["row zeros", "row minus zeros"]}
    lost = {"count": 2, "examples": ["row tiny: 24 of 24 values", "row a row: 12 of 24 values"]}
    small = "values too small for float16, stored as zeros; float32 keeps them"
    assert flagged["reasons"] == {"a set of zeros only": zeros} | (
        {small: lost} if dtype == "float16" else {}
    )
    assert len((tmp_path / "warnings.jsonl").read_text().splitlines()) == flagged["count"]


def test_oversized_integer_set_gets_its_own_shard(tmp_path):
    sets = make_sets(3)
    sets["id1"] = np.full((SHARD_BYTES // (DIM * 2) + 50, DIM), 255, np.uint8)
    manifest = write(tmp_path, sets)
    assert [shard.sets for shard in manifest.shards] == [1, 1, 1]
    assert np.array_equal(FeatureStore.open(tmp_path)[1], sets["id1"])


def test_empty_store_and_unknown_dtype_are_refused(tmp_path):
    writer = StoreWriter(tmp_path, dim=2, source={})
    writer.note(Skipped(where="line 1", why="bad luck"))
    with pytest.raises(InputError, match="1 x bad luck: line 1"):
        writer.close()
    with pytest.raises(InputError, match="not a complete feature store"):
        FeatureStore.open(tmp_path)
    assert write(tmp_path / "other", make_sets(3), statistics_of=["nobody"]).statistics is None
    with pytest.raises(InputError, match="Did you mean 'float16'"):
        StoreWriter(tmp_path, dim=2, dtype="flaot16", source={})


def test_shard_missing_from_journal_is_rewritten(folder, sets):
    other = folder.parent / "other"
    crash_after(other, sets, 23)
    path = other / "writing.json"
    journal = json.loads(path.read_text())
    del journal["shards"][-1]  # as if killed after writing the shard, before the journal
    path.write_text(json.dumps(journal))
    few = folder.parent / "few"
    shutil.copytree(other, few)
    write(few, dict(list(sets.items())[:9]))  # fewer sets: the unlisted shard is removed
    assert (
        len(list(few.glob("shard-*")))
        == len(FeatureStore.open(few).manifest.shards)
        == len(journal["shards"])
    )
    write(other, sets)
    assert contents(other) == contents(folder)


def test_resume_refuses_a_changed_shard(folder, sets):
    other = folder.parent / "other"
    crash_after(other, sets, 35)
    path = other / "shard-00001.arrow"
    flip(path, path.read_bytes().index(sets["id15"].astype("<f2").tobytes()))
    with pytest.raises(
        InputError, match=r"shard-00001\.arrow: changed since .*remove it and the shards after it"
    ):
        write(other, sets)
    for late in sorted(other.glob("shard-*"))[1:]:
        late.unlink()
    write(other, sets)
    assert contents(other) == contents(folder)


def test_resume_refuses_a_different_job(tmp_path):
    crash_after(tmp_path, make_sets(), 23)
    before = contents(tmp_path)
    for options, message in (
        ({"dim": 5}, "dim was 12, is 5"),
        ({"dtype": "float32"}, "dtype was float16, is float32"),
        ({"source": {"made": "elsewhere"}}, "source was .*here.*, is .*elsewhere"),
    ):
        with pytest.raises(InputError, match=f"another job .*{message}.*remove this folder"):
            store_writer(tmp_path, **options)
        assert contents(tmp_path) == before


def test_full_disk_error_states_size_and_leaves_no_shard(tmp_path, sets, monkeypatch):
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer = store_writer(tmp_path)
    monkeypatch.setattr(files.os, "fsync", full)
    writer.add("first", sets["id0"])
    with pytest.raises(InputError, match=r"shard-00000\.arrow: no space left: [\d,]+ bytes are needed"):
        writer.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "writing.json"]
    monkeypatch.undo()
    write(tmp_path, sets)
    FeatureStore.open(tmp_path).verify()


def test_statistics_cover_only_chosen_sets(tmp_path, sets):
    chosen = list(sets)[3:30:2]
    manifest = write(tmp_path, sets, statistics_of=[*chosen, "an id that was skipped"])
    stored = np.concatenate([sets[id] for id in chosen]).astype(np.float16).astype(np.float64)
    found = Manifest.read(tmp_path).statistics
    assert found == manifest.statistics
    assert (found["sets"], found["vectors"]) == (len(chosen), len(stored))
    np.testing.assert_allclose(found["mean"], stored.mean(0), rtol=0, atol=1e-14)
    np.testing.assert_allclose(found["std"], stored.std(0), rtol=1e-13)


def test_moments_are_accurate_for_large_means():
    x = np.random.default_rng(0).standard_normal((5000, 3)) * 1e-3 + 1e6
    moments = Moments(3)
    for start in range(0, 5000, 7):
        moments.add(x[start : start + 7])
    np.testing.assert_allclose(moments.std, x.std(0), rtol=1e-6)
    np.testing.assert_allclose(moments.mean, x.mean(0), rtol=1e-14)
