from __future__ import annotations

import shutil
import sys
from dataclasses import replace

import pytest
from corpora import make_corpus

from polypool.infra.errors import InputError
from polypool.infra.tracking import Tracker, find_runs, tracking_uri
from polypool.pipelines.commands import train
from polypool.pipelines.training import launch as start
from polypool.pipelines.training import recording
from polypool.pipelines.training.launch import read_original
from polypool.tasks.run import to_json


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYPOOL_HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


@pytest.fixture
def run(home):
    made = make_corpus(home)
    return replace(made, optim=replace(made.optim, epochs=1))


def verb(monkeypatch, capsys, *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["polypool train", "rerun", *arguments])
    train.main()
    return capsys.readouterr().out


def test_a_run_is_repeated_to_the_same_scores(run, home, monkeypatch, capsys):
    first = start.start(run)
    out = verb(monkeypatch, capsys, first)
    again, before = find_runs(tracking_uri(home), "polypool")
    assert before.run_id == first
    assert again.tags["rerun_of"] == first
    assert again.params == before.params
    assert {name: again.metrics[name] for name in before.metrics if name.startswith("whole/")} == {
        name: value for name, value in before.metrics.items() if name.startswith("whole/")
    }
    (line,) = (line for line in out.splitlines() if line.split()[:1] == ["whole/rsum"])
    value = f"{before.metrics['whole/rsum']:.2f}"
    assert line.split()[1:] == ["then", value, "now", value]
    assert "data." not in out


def test_what_differs_is_said_and_a_dry_run_trains_nothing(run, home, monkeypatch, capsys):
    first = start.start(run)
    tracker = Tracker.attach(tracking_uri(home), first, running=False)
    tracker.tags({"git_commit": "0" * 40, "torch": "0.4.0", "numpy": "", "git_dirty": "false"})
    features = tracker.tag("data.features")
    shutil.rmtree(home / "features")
    make_corpus(home, seed=1)
    out = verb(monkeypatch, capsys, first, "--dry-run")
    lines = [line.strip() for line in out.splitlines()]
    assert lines[0] == f"tiny mean seed 0 (run {first})"
    assert any(line.startswith(f"git_commit: then {'0' * 40}, now ") for line in lines)
    assert any(line.startswith("torch: then 0.4.0, now ") for line in lines)
    assert any(line.startswith(f"data.features: then {features}, now ") for line in lines)
    assert any(line.startswith("data.corpus: then ") for line in lines)
    assert "not recorded then: numpy" in lines
    assert not any(line.startswith(("data.images_train", "python")) for line in lines)
    assert len(find_runs(tracking_uri(home), "polypool", finished=False)) == 1


def test_a_run_that_cannot_be_repeated_is_refused(run, home):
    given = {"uri": tracking_uri(home), "home": home, "name": "made", "params": to_json(run)}
    for kind, message in (
        ("ensemble", "is an ensemble; give one of its members"),
        ("comparison", "is the summary of a comparison or a sweep; give one"),
        ("", "was not made by polypool"),
        ("released", "is of kind 'released' and was not trained here"),
    ):
        run_id = Tracker.start("polypool", tags={"kind": kind}, **given).run_id
        with pytest.raises(InputError, match=message):
            read_original(run_id)
    bare = Tracker.start("polypool", tags={"kind": "train"}, **given)
    with pytest.raises(
        InputError, match=r"cannot be repeated: its settings, the artifact run\.json, were deleted"
    ):
        read_original(bare.run_id)
    bare.json("run.json", {**to_json(run), "aggregater": "mean"})
    with pytest.raises(InputError, match="Did you mean 'aggregator'"):
        read_original(bare.run_id)
    bare.json("run.json", to_json(replace(run, aggregator="uninstalled")))
    with pytest.raises(InputError, match="unknown aggregator 'uninstalled'"):
        read_original(bare.run_id)
    bare.json("run.json", to_json(replace(run, data=replace(run.data, corpus="gone"))))
    with pytest.raises(InputError, match="gone"):
        read_original(bare.run_id)
    with pytest.raises(InputError, match="no run 'none'"):
        read_original("none")


def test_a_run_that_failed_can_be_repeated_and_is_said_to_have_no_scores(run, home, monkeypatch, capsys):
    given = {"uri": tracking_uri(home), "home": home, "name": "made", "params": to_json(run)}
    failed = Tracker.start("polypool", tags=recording.tags(run), **given)
    failed.json("run.json", to_json(run))
    failed.finish("FAILED")
    out = verb(monkeypatch, capsys, failed.run_id)
    assert "it has no scores of the test split: it failed, or was ended before them" in out
    assert find_runs(tracking_uri(home), "polypool")[0].tags["rerun_of"] == failed.run_id
