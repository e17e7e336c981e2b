from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from stores import flip

from polypool.infra.errors import InputError
from polypool.infra.store import FeatureStore, StoreWriter
from polypool.infra.store.findings import SKIPPED, Skipped, Tolerance, TooMuchSkipped
from polypool.infra.store.writer import ColumnsWriter, with_columns
from polypool.tasks.datasets import features
from polypool.tasks.datasets.features import Features, write_features

RANDOM = np.random.default_rng(0)
SETS = {
    f"s{number}": {
        "x_ND": RANDOM.standard_normal((number + 1, 8)).astype(np.float32),
        "columns": {"boxes": RANDOM.random((number + 1, 4)), "scores": RANDOM.random((number + 1, 1))},
    }
    for number in range(7)
}


def read(sets=SETS, **changed):
    """Yield sets like a reader, with the changes given by id."""
    for id, of in sets.items():
        yield Features(id=id, where=id, **of | changed.get(id, {}))


@pytest.fixture
def small_shards(monkeypatch) -> None:
    monkeypatch.setattr(features, "StoreWriter", partial(StoreWriter, shard_bytes=100))


def write(folder: Path, sets=None, **options):
    sets = read() if sets is None else sets
    options = {"tolerance": Tolerance(allow_skipped=True)} | options
    return write_features(folder, sets, source={"reader": "test"}, dtype="float32", **options)


def test_columns_align_with_vectors(tmp_path, small_shards):
    write(tmp_path / "s")
    store = FeatureStore.open(tmp_path / "s")
    assert store.columns == {"boxes": 4, "scores": 1}
    rows = store.rows(["s3", "s0", "s6"])
    for name in store.columns:
        column = store.column(name)
        for row, id in zip(rows, ("s3", "s0", "s6"), strict=True):
            assert np.array_equal(column[row], SETS[id]["columns"][name].astype(np.float32))
            assert np.array_equal(store[row], SETS[id]["x_ND"])
    store.verify()
    with pytest.raises(InputError, match="Did you mean 'boxes'"):
        store.column("boxs")


def test_set_with_invalid_column_or_vector_is_skipped(tmp_path):
    wrong = {
        "s1": {"columns": {"boxes": np.zeros((3, 4)), "scores": np.zeros((2, 1))}},
        "s2": {"columns": {"boxes": np.full((3, 4), np.nan), "scores": np.zeros((3, 1))}},
        "s3": {"columns": {"boxes": np.zeros((4, 4))}},
        "s4": {"x_ND": np.full((5, 8), np.nan, np.float32)},
    }
    twice = [*read(**wrong), Skipped(where="x", why="odd"), *read({"s5": SETS["s5"]})]
    write(tmp_path / "s", twice)
    store = FeatureStore.open(tmp_path / "s")
    assert store.ids.to_pylist() == ["s0", "s5", "s6"]
    assert all(store.column(name).ids.equals(store.ids) for name in store.columns)
    why = [json.loads(line)["why"] for line in (tmp_path / "s" / SKIPPED).read_text().splitlines()]
    assert why == [
        "boxes of another shape than (vectors, 4)",
        "boxes that are no finite numbers",
        "columns boxes, expected boxes, scores",
        "NaN or infinite values",
        "odd",
        "duplicate id",
    ]


def stopping(after: int):
    for number, each in enumerate(read()):
        if number == after:
            raise KeyboardInterrupt
        yield each


def test_resumed_store_equals_uninterrupted_store(tmp_path, small_shards):
    write(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "again", stopping(4))
    write(tmp_path / "again")
    files = lambda name: {  # noqa: E731
        path.relative_to(tmp_path / name): path.read_bytes()
        for path in (tmp_path / name).rglob("*")
        if path.is_file()
    }
    assert files("again") == files("whole")


def test_repeated_job_extends_columns_after_too_many_skipped_sets(tmp_path):
    bad = read(s1={"x_ND": np.full_like(SETS["s1"]["x_ND"], np.nan)})
    with pytest.raises(TooMuchSkipped):
        write(tmp_path / "s", bad, tolerance=Tolerance())
    write(tmp_path / "s")
    store = FeatureStore.open(tmp_path / "s")
    assert sorted(store.ids.to_pylist()) == sorted(SETS)
    assert all(store.column(name).ids.equals(store.ids) for name in store.columns)


def test_valid_set_that_was_skipped_before_may_not_shift_columns(tmp_path, small_shards):
    bad = {"s1": {"x_ND": np.full_like(SETS["s1"]["x_ND"], np.nan)}}
    for again in (bad, bad):  # the store keeps its finished shards, its columns nothing
        with pytest.raises(TooMuchSkipped):
            write(tmp_path / "s", read(**again), tolerance=Tolerance())
    with pytest.raises(InputError, match="s1 was skipped before an interruption and is valid now"):
        write(tmp_path / "s")
    write(tmp_path / "s", read(**bad))
    store = FeatureStore.open(tmp_path / "s")
    assert all(store.column(name).ids.equals(store.ids) for name in store.columns)


def test_missing_and_foreign_columns_are_refused(tmp_path):
    write(tmp_path / "s")
    write(tmp_path / "t", read({id: SETS[id] for id in ("s0", "s1")}))
    boxes = tmp_path / "s/columns/boxes"
    shutil.rmtree(boxes)
    store = FeatureStore.open(tmp_path / "s")
    with pytest.raises(InputError, match="boxes"):
        store.column("boxes")
    shutil.copytree(tmp_path / "t/columns/boxes", boxes)
    with pytest.raises(InputError, match="is no column of"):
        store.column("boxes")
    source = with_columns({"reader": "other"}, {"boxes": 4})
    with pytest.raises(InputError, match="a column of another store"):
        ColumnsWriter(tmp_path / "s", {"boxes": 4}, source=source)
    column = FeatureStore.open(tmp_path / "s/columns/scores")
    shard = column.folder / column.manifest.shards[0].file
    flip(shard, column.manifest.shards[0].vectors_at)
    shutil.rmtree(boxes)
    shutil.copytree(tmp_path / "s/columns/scores", boxes)
    with pytest.raises(InputError):
        store.verify()
