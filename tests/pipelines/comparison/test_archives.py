from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from query_results import renamed, retrieval
from records import begun, run
from verbs import called

from polypool.infra.errors import InputError
from polypool.infra.tracking import Artifacts, find_runs, tracking_uri
from polypool.pipelines.comparison.archives import ARCHIVE, read_archive, write_archive
from polypool.pipelines.comparison.choice import Choice
from polypool.pipelines.comparison.comparison import compare
from polypool.tasks.scoring.records import queries_json


def record(home: Path, aggregator: str, seed: int, *, shift: float = 0.0, ends: bool = True) -> str:
    """Record a run with per-query results; return its id."""
    queries, metrics = retrieval(seed=seed, shift=shift)
    queries = renamed(queries, np.arange(30).astype(str))
    found = {f"whole/{name}": value for name, value in metrics.items()} | {"cost/step": 40.0}
    tracker = begun(run(aggregator, seed, metrics=found), home)
    tracker.log(found, step=1)
    np.savez_compressed(packed := io.BytesIO(), **queries.arrays)
    (home / "whole.npz").write_bytes(packed.getvalue())
    tracker.artifact(home / "whole.npz", "per_query")
    tracker.text("per_query/whole.json", queries_json(queries.metrics))
    if ends:
        tracker.finish()
    return tracker.run_id


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A home with two seeds of `mean` and of `max`, which is better, and an unfinished third of `mean`."""
    folder = tmp_path_factory.mktemp("home")
    for seed in range(2):
        record(folder, "mean", seed)
        record(folder, "max", seed, shift=-0.5)
    record(folder, "mean", 2, ends=False)
    return folder


@pytest.fixture
def archive(home: Path, tmp_path: Path) -> Path:
    uri, path = tracking_uri(home), tmp_path / "a.parquet"
    assert write_archive(find_runs(uri, "polypool", finished=False), Artifacts(uri), path) == 4
    return path


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory) -> Path:
    """The home of another machine, with one run."""
    folder = tmp_path_factory.mktemp("elsewhere")
    record(folder, "gpo", 0)
    return folder


def test_archived_runs_compare_like_tracked_runs(home, archive, elsewhere):
    here = compare(tracking_uri(home), "polypool", baseline="mean", pairs=True)
    there = compare(tracking_uri(elsewhere), "none", archives=[archive], baseline="mean", pairs=True)
    pd.testing.assert_frame_equal(there.results, here.results)
    assert there.tables == here.tables
    assert (here.best_run.tags["aggregator"], there.best_run) == ("max", None)
    uri = tracking_uri(elsewhere)
    assert there.notes == (
        f"4 runs are from {archive}",
        f"experiment 'none' of {uri} has no runs to compare with them",
    )


def test_tracked_and_archived_runs_share_one_table(archive, elsewhere):
    comparison = compare(
        tracking_uri(elsewhere), "polypool", archives=[archive], choice=Choice(aggregators=("max", "gpo"))
    )
    (group,) = comparison.groups
    assert {row.label: row.seeds for row in group.rows} == {"max": ("0", "1"), "gpo": ("0",)}
    assert {*group.judged.intervals} == {"max", "gpo"}
    assert comparison.best_run.tags["aggregator"] == "gpo"


def test_damaged_archives_and_unsafe_paths_are_refused(archive, tmp_path):
    whole = archive.read_bytes()
    for column, value, message in (
        *(("run_id", value, "is no id of a run") for value in ("..", "../x", "/etc", "")),
        *(
            ("files", [(name, b"x")], "is no file of an evaluation's results")
            for name in ("../x.npz", "per_query/../../x.npz", "/x.json", "per_query/x.py")
        ),
    ):
        archive.write_bytes(whole)
        table = pq.read_table(archive)
        rows = table.to_pylist()
        rows[0][column] = value
        pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), archive)
        with pytest.raises(InputError, match=message):
            read_archive(archive, tmp_path)
    assert not [*tmp_path.rglob("x.*")]
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    (tmp_path / "half.parquet").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "flipped.parquet").write_bytes(whole[:200] + bytes([whole[200] ^ 255]) + whole[201:])
    for name, message in (
        ("other.parquet", "its columns are not those of an archive"),
        ("half.parquet", "cannot be read as Parquet"),
        ("flipped.parquet", "cannot be read as Parquet"),
        ("nowhere.parquet", "nowhere"),
        ("a.zip", r"written as \.parquet"),
    ):
        with pytest.raises(InputError, match=message):
            read_archive(tmp_path / name, tmp_path)


def test_compare_reads_output_of_runs_archive(home, elsewhere, monkeypatch, tmp_path):
    archive = tmp_path / "mean only.parquet"
    monkeypatch.setenv("POLYPOOL_HOME", str(home))
    code, said, _ = called("runs", "archive", "--out", archive, "--aggregators", "mean")
    assert code == 0
    assert f"2 runs written to {archive}; 1 not finished and left out" in said
    assert f"compare --archives '{archive}'" in said
    for place, log in ((elsewhere, ()), (tmp_path, ("--log",))):  # the second home has no runs
        monkeypatch.setenv("POLYPOOL_HOME", str(place))
        code, said, error = called("compare", "--archives", archive, *log)
        assert (code, "2 runs are from" in said) == (0, True), error
    monkeypatch.setenv("POLYPOOL_HOME", str(elsewhere))
    code, said, error = called("runs", "archive", "--archives", archive, "--out", archive)
    assert (code, f"3 runs written to {archive}" in said) == (0, True), error
    (tmp_path / "files").mkdir()
    runs = read_archive(archive, tmp_path / "files")
    assert sorted(run.tags["aggregator"] for run in runs) == ["gpo", "mean", "mean"]
    assert ARCHIVE not in {tag for row in pq.read_table(archive)["tags"].to_pylist() for tag, _ in row}
