"""Sweeps through Ray Tune, as a user makes them: what fails, what was done before, what is stopped early."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from corpora import make_corpus
from places import ROOT, SUPPORT

from infra.ray.session import ray_session
from infra.registry import RECIPES
from infra.tracking import RunRecord, Tracker, find_runs, tracking_uri
from pipelines import sweep as module
from pipelines.sweeping.execution import ERROR
from pipelines.sweeping.matching import STOPPED, SWEEP

pytestmark = pytest.mark.ray

SMALL = ("--cpus", "1", "--optim.epochs", "3")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home of its own, with a corpus, a recipe for it, and one Ray for all sweeps."""
    folder = tmp_path_factory.mktemp("home")
    run = make_corpus(folder)
    RECIPES.names()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYPOOL_HOME", str(folder))
        patch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{SUPPORT}")
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.setitem(RECIPES._parts, "tiny", lambda: run)
        with ray_session(cpus=2):
            yield folder


def command(*words: str) -> int:
    """Give a command line and return the exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["sweep", *words])
        try:
            module.main()
        except SystemExit as stop:
            return stop.code
    return 0


def trained(home: Path, experiment: str) -> dict[str, RunRecord]:
    """Return the runs of an experiment by aggregators, each of which may be there once."""
    runs = find_runs(tracking_uri(home), experiment, finished=False)
    runs = [run for run in runs if run.tags["kind"] == "train"]
    found = {f"{run.tags['aggregator']}/{run.tags['text_aggregator']}": run for run in runs}
    assert len(found) == len(runs)
    return found


def all_cores_are_free() -> bool:
    """Wait until nobody holds a core of the session."""
    deadline = time.monotonic() + 120
    while ray.available_resources().get("CPU") != 2:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def test_what_fails_stops_nothing_and_what_is_done_is_not_done_again(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = "failing_aggregator:Failing"
    grid = ("--recipes", "tiny", "--experiment", "pairs", *SMALL)
    assert command(*grid, "--aggregators", failing, "mean", "--concurrent", "2") == 1
    said = capsys.readouterr().out
    runs = trained(home, "pairs")
    failed, done = runs[f"{failing}/{failing}"], runs["mean/mean"]
    assert (failed.status, done.status) == ("FAILED", "FINISHED")
    assert done.tags["kind"] == "train"
    assert done.tags["seed"] == "0"
    assert done.params["optim.epochs"] == "3"
    assert done.metrics["epoch"] == 3
    assert "whole/rsum" in done.metrics
    assert "2 trials; 2 to train, 2 at once" in said
    assert "1 trained, 1 failed" in said
    assert f"{failing} seed 0 (run {failed.run_id}): ArithmeticError: nothing adds up" in said
    assert "image_text · tiny · whole" in said, "the comparison is shown"
    kept = Tracker.attach(tracking_uri(home), failed.run_id, running=False).download(ERROR).read_text()
    assert "Traceback" in kept
    assert "nothing adds up" in kept
    assert not [*(home / "runs").glob("sweep-????????")], "Tune's own files are gone"

    # an interrupted trial goes on under its own id; a finished one stays as it is
    Tracker.attach(tracking_uri(home), done.run_id)
    sweep = ("--aggregators", "mean", "max", "--text-aggregators", "mean")
    assert command(*grid, *sweep) == 0
    again = trained(home, "pairs")
    assert again["mean/mean"].run_id == done.run_id
    assert again["mean/mean"].status == "FINISHED"
    assert again["mean/mean"].tags[SWEEP] != done.tags[SWEEP]
    said = capsys.readouterr().out
    assert "1 interrupted before, to go on from the last checkpoint; 2 to train" in said
    figure = home / "runs" / "pairs-tiny-visual_by_text.png"
    assert figure.exists()
    assert str(figure) in said
    (comparison, *_) = (
        run for run in find_runs(tracking_uri(home), "pairs") if run.tags["kind"] == "comparison"
    )
    assert Tracker.attach(tracking_uri(home), comparison.run_id, running=False).download(figure.name).exists()

    assert command(*grid, *sweep) == 0
    said = capsys.readouterr().out
    assert said.startswith("2 trials, 2 of them finished before and skipped; 0 to train\n")
    last = trained(home, "pairs")
    assert {name: run.ended for name, run in last.items()} == {name: run.ended for name, run in again.items()}

    assert command(*grid, *sweep, "--dry-run") == 0
    assert "tiny max, text mean seed 0  finished, run" in capsys.readouterr().out


def test_the_worse_half_is_stopped_early_and_kept_apart(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aggregators = ("mean", "failing_aggregator:Blind")
    grid = ("--recipes", "tiny", "--aggregators", *aggregators, "--experiment", "race", *SMALL)
    assert command(*grid, "--early-stop", "--concurrent", "1") == 0
    said = capsys.readouterr().out
    runs = trained(home, "race")
    good, poor = runs["mean/mean"], runs["{0}/{0}".format(aggregators[1])]
    assert (good.status, poor.status) == ("FINISHED", "KILLED")
    assert poor.tags[STOPPED] == "after epoch 1 of 3"
    assert not any(name.startswith("whole/") for name in poor.metrics)
    assert "1 trained, 1 stopped early" in said
    assert f"failing_aggregator:Blind seed 0: after epoch 1 of 3, run {poor.run_id}" in said
    assert "1 run left out, not finished" in said

    assert all_cores_are_free(), "the workers of what was stopped are gone"

    assert command(*grid, "--early-stop") == 0, "what was stopped stays so"
    assert "1 stopped early before, left as they are; 0 to train" in capsys.readouterr().out
    assert command(*grid) == 0, "unless the whole is asked for"
    whole = trained(home, "race")["{0}/{0}".format(aggregators[1])]
    assert (whole.run_id, whole.status, whole.tags[STOPPED]) == (poor.run_id, "FINISHED", "")


def test_wrong_words_end_before_anything_starts(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--recipes", "tiny", "tinny", "--aggregators", "maen", "--experiment", "none")
    assert command(*words) == 2
    said = capsys.readouterr().err
    assert "unknown recipe 'tinny'" in said
    assert "unknown aggregator 'maen'" in said
    fixed = ("--recipes", "tiny", "--aggregators", "mean", "--seed", "3")
    assert command(*fixed) == 2
    assert "--seed: a sweep decides that itself; use --seeds" in capsys.readouterr().err
    unknown = ("--recipes", "tiny", "--aggregators", "mean", "--optim.epoch", "3")
    assert command(*unknown) == 2
    assert "--optim.epochs" in capsys.readouterr().err
    once = ("--recipes", "tiny", "--aggregators", "mean", "--optim.epochs", "1", "--early-stop")
    assert command(*once) == 2
    assert "--early-stop needs at least 2 epochs, and tiny has one" in capsys.readouterr().err
    assert "none" not in (home / "runs").as_posix()
    with pytest.raises(Exception, match="unknown experiment 'none'"):
        find_runs(tracking_uri(home), "none")
