"""Sweeps, end to end: runs, failures, early stopping, interruptions, and the sweep's own run."""

import json
import math
import os
import shlex
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest
import ray
from corpora import make_corpus
from safetensors.torch import load_file
from torch import Tensor
from toy import same_weights

from polypool.infra.errors import InputError
from polypool.infra.paths import home
from polypool.infra.registry import RECIPES
from polypool.infra.tracking import RunRecord, Tracker, find_runs, tracking_uri
from polypool.pipelines.commands import sweep as module
from polypool.pipelines.comparison.comparison import compare
from polypool.pipelines.comparison.runs import list_runs
from polypool.pipelines.models.trained import load
from polypool.pipelines.training import sweep as sweeping
from polypool.pipelines.training import train as training
from polypool.pipelines.training.record import tags, take_run
from polypool.pipelines.training.sweep import ERROR, STOPPED, SWEEP
from polypool.pipelines.training.train import start
from polypool.tasks.run import from_json, to_json

pytestmark = pytest.mark.ray

SMALL = ("--cpus", "1", "--optim.epochs", "3", "--no-figures")
FAILING, REFUSING, BLIND = (f"failing_aggregator:{name}" for name in ("Failing", "Refusing", "Blind"))
RACE = ("--recipes", "tiny", "--experiment", "race", *SMALL, "--aggregators")
RACERS = ("mean", FAILING, REFUSING, BLIND, "--early-stop", "--concurrent", "2")


@pytest.fixture(scope="module")
def tiny(home) -> Iterator[Path]:
    """The home, with a corpus and the recipe `tiny` for it."""
    run = make_corpus(home)
    RECIPES.names()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RECIPES._parts, "tiny", lambda: run)
        yield home


@pytest.fixture(scope="module")
def race(tiny, one_ray) -> tuple[str, dict[str, RunRecord]]:
    """Output of a sweep, and its runs by aggregator: one trained, two failed, one stopped early."""
    with redirect_stdout(StringIO()) as said:
        code = command(*RACE, *RACERS)
    assert code == 1
    return said.getvalue(), {name.partition("/")[0]: run for name, run in trained(tiny, "race").items()}


def command(*words: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["polypool sweep", *words])
        try:
            module.main()
        except SystemExit as stop:
            return stop.code
    return 0


def trained(home: Path, experiment: str) -> dict[str, RunRecord]:
    """Return the training runs of an experiment by pair of aggregators; each pair must be unique."""
    runs = find_runs(tracking_uri(home), experiment, finished=False)
    runs = [run for run in runs if run.tags["kind"] == "train"]
    found = {f"{run.tags['aggregator']}/{run.tags['text_aggregator']}": run for run in runs}
    assert len(found) == len(runs)
    return found


def all_cores_are_free() -> bool:
    """Wait until all cores of the session are free; return false on a timeout."""
    deadline = time.monotonic() + 120
    while ray.available_resources().get("CPU") != 2:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


@pytest.mark.slow
def test_failed_trials_do_not_stop_sweep(tiny, race):
    said, found = race
    failed, refused, done = found[FAILING], found[REFUSING], found["mean"]
    assert (failed.status, refused.status, done.status) == ("FAILED", "FAILED", "FINISHED")
    assert done.tags["kind"] == "train"
    assert done.tags["seed"] == "0"
    assert done.tags["command"] == shlex.join(["polypool", "sweep", *RACE, *RACERS])
    assert done.params["optim.epochs"] == "3"
    assert done.metrics["epoch"] == 3
    assert "whole/rsum" in done.metrics
    assert "4 trials; 4 to train, 2 at once" in said
    assert "1 trained, 1 stopped early, 2 failed" in said
    assert f"{FAILING} seed 0 (run {failed.run_id}): ArithmeticError: nothing adds up" in said
    assert f"{REFUSING} seed 0 (run {refused.run_id}): the moon is in the wrong phase: wait a week" in said
    assert "image_text · tiny · whole" in said, "the comparison must be printed"
    kept = Tracker.attach(tracking_uri(tiny), failed.run_id, running=False).download(ERROR).read_text()
    assert "Traceback" in kept
    assert "nothing adds up" in kept
    assert not [*(tiny / "runs").glob("sweep-????????")], "Ray Tune's files must be removed"


@pytest.mark.slow
def test_early_stopped_trials_are_left_out_of_comparison(race):
    said, found = race
    poor = found[BLIND]
    assert poor.status == "KILLED"
    assert poor.tags[STOPPED] == "after epoch 1 of 3"
    assert not any(name.startswith("whole/") for name in poor.metrics)
    assert f"{BLIND} seed 0: after epoch 1 of 3, run {poor.run_id}" in said
    assert "3 runs left out, not finished" in said
    assert all_cores_are_free(), "workers of stopped trials must end"


def weights(run_id: str) -> dict[str, Tensor]:
    tracker = Tracker.attach(tracking_uri(home()), run_id, running=False)
    return load_file(tracker.download("model/model.safetensors"))


def parent_of(record: RunRecord) -> str:
    return record.tags.get("mlflow.parentRunId", "")


def sweeps(home: Path, experiment: str) -> list[RunRecord]:
    """Return the runs of an experiment's sweeps, oldest first."""
    runs = find_runs(tracking_uri(home), experiment, finished=False)[::-1]
    return [run for run in runs if run.tags["kind"] == "sweep"]


@pytest.mark.usefixtures("without_comparison")
def test_sweep_records_plan_runs_and_best_trial(tiny):
    flags = ("--cpus", "1", "--optim.epochs", "1", "--no-figures")
    run = RECIPES.get("tiny")()
    optim = replace(run.optim, epochs=1)
    alone = replace(run, aggregator="gpo", cpus=1, optim=optim, figures=False, experiment="parents")
    alone_id = start(alone)
    words = ("--recipes", "tiny", "--experiment", "parents", "--concurrent", "1", *flags, "--aggregators")
    assert command(*words, "mean", "max") == 0
    (parent,), found = sweeps(tiny, "parents"), trained(tiny, "parents")
    assert (parent.status, parent.name) == ("FINISHED", "sweep of tiny, 2 trials")
    plan = {
        "recipes": ["tiny"],
        "aggregators": ["mean", "max"],
        "text_aggregators": [],
        "seeds": 1,
        "first_seed": 0,
    }
    plan |= {"early_stop": False, "flags": [*flags], "trials": 2}
    assert {name: json.loads(value.lower()) for name, value in parent.params.items()} == plan
    mine = [found["mean/mean"], found["max/max"]]
    assert [parent_of(of) for of in (*mine, found["gpo/gpo"])] == [parent.run_id] * 2 + [""]
    best = max(mine, key=lambda of: of.metrics["dev/best_rsum"])
    assert parent.tags["best.tiny"] == best.run_id
    assert parent.metrics == {"best/tiny/rsum": best.metrics["dev/best_rsum"]}
    note = parent.tags["mlflow.note.content"]
    assert note.startswith(f"Best of tiny on `val`: tiny {best.tags['aggregator']} seed 0, rsum ")
    assert "(started before)" not in note
    listed = Tracker.attach(tracking_uri(tiny), parent.run_id, running=False).read_json("trials.json")
    assert listed["columns"] == ["name", "how", "run_id", "metric", "best", "parent"]
    assert [row[2] for row in listed["data"]] == [of.run_id for of in mine]

    assert command(*words, "mean", "max") == 0, "repeating a finished sweep must succeed"
    assert sweeps(tiny, "parents") == [parent]
    uri = tracking_uri(tiny)
    table = compare(uri, "parents")
    assert (len(table.groups), sum(len(row.runs) for row in table.groups[0].rows), table.notes) == (1, 3, ())
    assert {of["run_id"] for of in list_runs(uri, "parents", home=tiny)} == {x.run_id for x in found.values()}
    with pytest.raises(InputError, match="stands for a sweep; give one of its runs"):
        load(parent.run_id)

    assert command(*words, "mean", "gpo", "max") == 0, "a sweep of finished runs must succeed"
    assert sweeps(tiny, "parents") == [parent], "a sweep without training must not be recorded"
    assert command(*words, "gpo", "lip") == 0
    (_, second), found = sweeps(tiny, "parents"), trained(tiny, "parents")
    assert [parent_of(found[f"{name}/{name}"]) for name in ("gpo", "lip")] == ["", second.run_id]
    rows = [line for line in second.tags["mlflow.note.content"].splitlines() if line.startswith("| tiny")]
    assert [("finished before" in row, "(started before)" in row) for row in rows] == [
        (True, True),
        (False,) * 2,
    ]
    assert alone_id in rows[0]
    assert second.tags["sweep_plan"] != parent.tags["sweep_plan"]


@pytest.mark.usefixtures("without_comparison")
def test_failed_trial_leaves_no_state_for_later_trials(tiny, monkeypatch):
    for place in (sweeping, training):
        monkeypatch.delattr(place, "ray_session")
    words = ("--recipes", "tiny", "--experiment", "one process", *SMALL, "--concurrent", "1")
    assert command(*words, "--aggregators", FAILING, "mean") == 1
    found = trained(tiny, "one process")
    failed, done = found[f"{FAILING}/{FAILING}"], found["mean/mean"]
    assert (failed.status, done.status) == ("FAILED", "FINISHED")
    (parent,) = sweeps(tiny, "one process")
    assert (parent.status, parent.tags["best.tiny"]) == ("FAILED", done.run_id)
    row = f"| tiny {FAILING} seed 0 | \u2013 | failed | {failed.run_id} |"
    assert row in parent.tags["mlflow.note.content"]
    settings = Tracker.attach(tracking_uri(tiny), done.run_id, running=False).read_json("run.json")
    assert same_weights(
        weights(done.run_id), weights(start(replace(from_json(settings), experiment="alone")))
    )


@pytest.mark.usefixtures("without_comparison")
def test_sweep_stopped_by_sigterm_resumes(tiny, capfd):
    objective = f"faulty:StoppedOnce(runs={str(tiny / 'runs')!r}, epoch=1.4, process={os.getpid()})"
    words = ("--recipes", "tiny", "--experiment", "ended", *SMALL, "--concurrent", "1")
    words += ("--objective", objective, "--aggregators")
    assert command(*words, "mean", "max") == 143
    assert "to resume: polypool train" not in capfd.readouterr().err, "must not offer to resume one run"
    (stopped,), (parent,) = trained(tiny, "ended").values(), sweeps(tiny, "ended")
    assert (stopped.status, stopped.metrics["epoch"], parent.status) == ("KILLED", 1, "KILLED")
    assert command(*words, "max", "mean") == 0, "another order must resume the same trials"
    found, (again,) = trained(tiny, "ended"), sweeps(tiny, "ended")
    assert [of.status for of in (*found.values(), again)] == ["FINISHED"] * 3
    assert found["mean/mean"].run_id == stopped.run_id
    assert {parent_of(of) for of in found.values()} == {again.run_id} == {parent.run_id}

    Tracker.attach(tracking_uri(tiny), again.run_id)  # set to RUNNING, as if it had been killed
    assert command(*words, "mean", "max") == 0
    assert sweeps(tiny, "ended")[0].status == "FINISHED"


@pytest.mark.slow
def test_ray_trials_after_crashes_match_single_runs(tiny, one_ray):
    marker = str(tiny / "died")
    objective = f"faulty:KilledOften(markers={[marker]!r}, epochs=[1.4])"
    words = ("--recipes", "tiny", "--experiment", "kept", *SMALL, "--retries", "1", "--concurrent", "2")
    aggregators = ("mean", FAILING, "max", "kmax(k=2)")
    assert command(*words, "--objective", objective, "--aggregators", *aggregators) == 1
    assert Path(marker).exists()
    found = trained(tiny, "kept")
    assert [found[f"{name}/{name}"].status for name in ("mean", FAILING)] == ["FINISHED", "FAILED"]
    for name in ("mean", "max", "kmax(k=2)"):
        record = found[f"{name}/{name}"]
        settings = Tracker.attach(tracking_uri(tiny), record.run_id, running=False).read_json("run.json")
        alone = start(replace(from_json(settings), experiment="alone"))
        assert same_weights(weights(record.run_id), weights(alone))


@pytest.mark.slow
def test_early_stopped_trial_resumes_only_without_early_stop(tiny, race, capsys):
    poor = race[1][BLIND]
    assert command(*RACE, "mean", BLIND, "--early-stop") == 0
    assert "1 stopped early before, not resumed; 0 to train" in capsys.readouterr().out
    assert command(*RACE, "mean", BLIND, "--concurrent", "1") == 0
    whole = trained(tiny, "race")[f"{BLIND}/{BLIND}"]
    assert (whole.run_id, whole.status, whole.tags[STOPPED]) == (poor.run_id, "FINISHED", "")


@pytest.mark.slow
def test_sweep_of_aggregator_pairs_draws_heat_map(tiny, capsys):
    grid = ("--recipes", "tiny", "--experiment", "pairs", *SMALL, "--concurrent", "1", "--aggregators")
    assert command(*grid, "mean") == 0
    first = trained(tiny, "pairs")
    grid += ("mean", "--text-aggregators", "mean", "max")
    assert command(*grid) == 0
    said = capsys.readouterr().out
    assert "2 trials, 1 of them finished before and skipped; 1 to train" in said
    assert first.items() <= trained(tiny, "pairs").items()
    figure = tiny / "runs" / "pairs-tiny-visual_by_text.png"
    assert figure.exists()
    assert str(figure) in said
    (comparison, *_) = find_runs(tracking_uri(tiny), "pairs-comparisons")
    assert Tracker.attach(tracking_uri(tiny), comparison.run_id, running=False).download(figure.name).exists()
    assert command(*grid, "--dry-run") == 0
    assert "tiny mean, text max seed 0  finished, run" in capsys.readouterr().out


@pytest.mark.parametrize("seen", [True, False], ids=["seen while planning", "seen while resuming"])
def test_run_trained_by_another_process_is_left_alone(seen, tiny, capsys, monkeypatch):
    experiment = f"held {seen}"
    grid = ("--recipes", "tiny", "--experiment", experiment, "--concurrent", "1", "--aggregators", "mean")
    run = replace(RECIPES.get("tiny")(), aggregator="mean", experiment=experiment)
    uri = tracking_uri(tiny)
    tracker = Tracker.start(
        experiment, uri=uri, home=tiny, name="n", tags=tags(run) | {SWEEP: "s"}, params={}
    )
    tracker.json("run.json", to_json(run))
    if not seen:
        monkeypatch.setattr(sweeping, "process_of", lambda record, home: ("dead", ""))
    with ThreadPoolExecutor(1) as elsewhere:
        lease = elsewhere.submit(take_run, tracker).result()
        assert command(*grid) == (0 if seen else 1)
        lease.release()
    said = capsys.readouterr().out
    if seen:
        assert f"tiny mean seed 0 is left alone: process {os.getpid()} on " in said
    else:
        assert f"run {tracker.run_id} is being trained by another process (process {os.getpid()} on " in said
    assert (tracker.status(), tracker.tag(SWEEP)) == ("RUNNING", "s")


def test_invalid_arguments_exit_2_before_start(tiny, capsys):
    assert command("--experiment", "none", "--recipes", "tiny", "tinny", "--aggregators", "maen") == 2
    said = capsys.readouterr().err
    assert all(message in said for message in ("unknown recipe 'tinny'", "unknown aggregator 'maen'"))
    with pytest.raises(InputError, match=r"unknown experiment 'none'|no runs are recorded"):
        find_runs(tracking_uri(tiny), "none")


@pytest.mark.parametrize("metric", ["rsum", "meanr"])
def test_best_trial_excludes_incomplete_and_tuning_trials(metric):
    """Trials of recipe `a`, and a tuning trial of `b`; lower is better for `meanr`."""
    ways = [("a", "stopped after epoch 1 of 3", 9.0, True), ("a", "trained", 3.0, True)]
    ways += [
        ("a", "finished before", 5.0, True),
        ("a", "failed", math.nan, True),
        ("b", "trained", 7.0, False),
    ]
    sign = 1 if metric == "rsum" else -1
    rows = [
        {"recipe": recipe, "name": f"{recipe} {how}", "how": how, "run_id": f"{n:032}", "metric": metric}
        | {"best": best, "score": sign * best, "test": test, "parent": "p"}
        | {"whole": how in ("trained", "finished before")}
        for n, (recipe, how, best, test) in enumerate(ways)
    ]
    best = sweeping.best_of(pd.DataFrame(rows))
    assert [*best["name"]] == ["a finished before" if sign == 1 else "a trained"]
    table = pd.DataFrame([{**rows[1], "name": f"coco gpo seed {seed}"} for seed in range(200)])
    text = sweeping.description(table, best, own="p")
    assert len(text) < 5100
    shown = text.count("| coco gpo")
    assert 20 < shown < 200
    assert text.endswith(f"and {200 - shown} more, which `trials.json` lists.")


def test_sweep_of_a_file_without_recipe_name_is_concluded(tmp_path, monkeypatch):
    row = {
        "recipe": "",
        "name": "mean seed 0",
        "how": "trained",
        "run_id": "r",
        "metric": "rsum",
        "best": 9.0,
    }
    row |= {"parent": "p", "score": 9.0, "test": True, "whole": True}
    monkeypatch.setattr(sweeping, "outcomes", lambda *_: pd.DataFrame([row]))
    tracker = Tracker.start("x", uri=tracking_uri(tmp_path), home=tmp_path, name="s", tags={}, params={})
    sweeping.conclude(tracker, None, [])
    assert tracker.metrics() == {"best/run/rsum": 9.0}
