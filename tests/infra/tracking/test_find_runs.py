"""The runs of an SQLite file, as they are read and as MLflow gives them."""

import math
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest
from mlflow import MlflowClient

from polypool.infra.errors import AbsentError, InputError
from polypool.infra.tracking import RunRecord, Tracker, find_runs
from polypool.infra.tracking import run_records as module
from polypool.infra.tracking.run_records import read_runs


def begin(uri: str, home: Path, name: str, *, experiment: str = "many", **params: object) -> Tracker:
    return Tracker.start(experiment, uri=uri, home=home, name=name, tags={"kind": "train"}, params=params)


@pytest.fixture(scope="module")
def uri(tmp_path_factory) -> str:
    """A store with runs of every kind, in a folder whose name SQLite and URIs could misread."""
    home = tmp_path_factory.mktemp("100% of #runs")
    uri = f"sqlite:///{home / 'mlflow.db'}"
    done = begin(uri, home, "done", lr=1e-3, words="x" * 300, text="", none=None)
    done.log({"loss": 2.0, "whole/i2t/R1": 10.0}, step=1)
    done.log({"loss": math.nan, "high": math.inf, "low": -math.inf}, step=2)
    done.tags({"é": "ü\n'\"", "seed": "0"})
    done.finish()
    begin(uri, home, "failed").finish("FAILED")
    begin(uri, home, "killed").finish("KILLED")
    begin(uri, home, "at work").log({"loss": 1.0}, step=0)
    again = begin(uri, home, "taken up again")
    again.finish("FAILED")
    Tracker.attach(uri, again.run_id)
    begin(uri, home, "elsewhere", experiment="other").finish()
    client = MlflowClient(uri)
    client.delete_run(begin(uri, home, "deleted").run_id)
    back = begin(uri, home, "deleted and brought back").run_id
    client.delete_run(back)
    client.restore_run(back)
    experiment = client.get_experiment_by_name("many").experiment_id
    for _ in range(8):  # that began at the same time
        client.create_run(experiment, start_time=1_700_000_000_000)
    return uri


@pytest.fixture
def asked(monkeypatch) -> Iterator[list[str]]:
    """The stores that MLflow was asked about."""
    uris, connect = [], module.connect
    monkeypatch.setattr(module, "connect", lambda uri, **more: uris.append(uri) or connect(uri, **more))
    return uris


def file(uri: str) -> Path:
    return Path(uri.removeprefix("sqlite:///"))


def comparable(runs: list[RunRecord]) -> list[str]:
    """Return records as text, in which NaN is like NaN, whatever order MLflow has names in."""
    return [
        str({name: sorted(x.items()) if isinstance(x, dict) else x for name, x in asdict(run).items()})
        for run in runs
    ]


@pytest.mark.parametrize("finished", [True, False])
def test_runs_are_those_that_mlflow_gives(uri, finished, asked, monkeypatch):
    read = find_runs(uri, "many", finished=finished)
    assert asked == []
    monkeypatch.setattr(module, "read_runs", lambda *_, **__: None)
    given = find_runs(uri, "many", finished=finished)
    assert asked == [uri]
    assert comparable(read) == comparable(given)
    names = [run.name for run in read]
    assert ("done" in names, "deleted" in names, "elsewhere" in names) == (True, False, False)
    assert len(read) == (1 if finished else 14)
    assert all((run.ended is None) == (run.status == "RUNNING") for run in read), "also of a resumed run"


CHANGES: dict[str, Callable[[MlflowClient, str], object]] = {
    "deleted": lambda client, run: client.delete_run(run),
    "renamed": lambda client, run: client.update_run(run, name="another name"),
    "tagged": lambda client, run: client.set_tag(run, "kind", "outlier"),
    "tag taken away": lambda client, run: client.delete_tag(run, "kind"),
    "scored again": lambda client, run: client.log_metric(run, "whole/rsum", 3.0),
    "scored by another protocol": lambda client, run: client.log_metric(run, "coco-5k/rsum", 3.0),
    "begun again": lambda client, run: client.update_run(run, status="RUNNING"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_somebody_does_to_a_finished_run_is_seen(uri, change, asked, monkeypatch):
    home = file(uri).parent
    runs = [begin(uri, home, name, experiment=change) for name in ("one", "two")]
    for run in runs:
        run.log({"whole/rsum": 1.0}, step=0)
        run.finish()
    before = find_runs(uri, change, finished=False)
    CHANGES[change](MlflowClient(uri), runs[0].run_id)
    after = find_runs(uri, change, finished=False)
    assert after[0] == before[0]
    assert after[1:] != before[1:]
    assert asked == []
    monkeypatch.setattr(module, "read_runs", lambda *_, **__: None)
    assert comparable(after) == comparable(find_runs(uri, change, finished=False))


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE runs ADD COLUMN hidden INTEGER",
        "ALTER TABLE latest_metrics RENAME COLUMN is_nan TO is_number",
        "UPDATE experiments SET workspace = 'a team' WHERE name = 'other'",
        "DROP TABLE params",
        "UPDATE runs SET name = CAST(x'ff' AS TEXT)",
    ],
)
def test_tables_that_are_not_known_are_left_to_mlflow(uri, tmp_path, statement):
    copy = tmp_path / "copy.db"
    copy.write_bytes(file(uri).read_bytes())
    assert len(read_runs(copy, "many", finished=False)) == 14
    with closing(sqlite3.connect(copy)) as changed:
        changed.execute(statement)
        changed.commit()
    assert read_runs(copy, "many", finished=False) is None
    if "hidden" in statement:
        assert len(find_runs(f"sqlite:///{copy}", "many", finished=False)) == 14


def test_what_is_not_there_or_cannot_be_read_is_left_to_mlflow(uri, tmp_path, asked, monkeypatch):
    with pytest.raises(AbsentError, match=r"unknown experiment 'mny'. Did you mean 'many'\?"):
        find_runs(uri, "mny")
    assert asked == [uri]
    client = MlflowClient(uri)
    client.delete_experiment(client.create_experiment("gone"))
    with pytest.raises(InputError, match=r"experiment 'gone' of .* was deleted"):
        find_runs(uri, "gone")
    (tmp_path / "text.db").write_text("no database, but long enough to look like one" * 50)
    (tmp_path / "empty.db").touch()
    for name in ("text.db", "empty.db", "none.db"):
        assert read_runs(tmp_path / name, "many", finished=False) is None
    assert not (tmp_path / "none.db").exists()
    monkeypatch.setattr(module, "_PATIENCE", 0.01)
    with closing(sqlite3.connect(file(uri), isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        assert read_runs(file(uri), "many", finished=False) is None
        writer.execute("ROLLBACK")
    assert len(read_runs(file(uri), "many", finished=False)) == 14
