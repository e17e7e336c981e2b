"""Sweeps through Ray Tune, as a user makes them: what fails, what was done before, what is stopped early."""

import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import mlflow
import pytest
import ray
import torch
from corpora import make_corpus
from safetensors.torch import load_file
from torch import Tensor
from toy import same_weights

from polypool.infra.errors import InputError
from polypool.infra.paths import home
from polypool.infra.registry import AGGREGATORS, RECIPES
from polypool.infra.tracking import Log, RunRecord, Tracker, find_runs, tracking_uri
from polypool.pipelines.commands import sweep as module
from polypool.pipelines.training import sweep as sweeping
from polypool.pipelines.training import train as training
from polypool.pipelines.training.record import LOG_FOLDER, take_run
from polypool.pipelines.training.sweep import ERROR, STOPPED, SWEEP
from polypool.pipelines.training.train import start
from polypool.tasks.run import from_json

pytestmark = pytest.mark.ray

SMALL = ("--cpus", "1", "--optim.epochs", "3", "--no-figures")
FAILING, REFUSING, BLIND, LEAKING = (
    f"failing_aggregator:{name}" for name in ("Failing", "Refusing", "Blind", "Leaking")
)
RACE = ("--recipes", "tiny", "--experiment", "race", *SMALL, "--aggregators")
RACERS = ("mean", FAILING, REFUSING, BLIND, "--early-stop", "--concurrent", "2")


@pytest.fixture(scope="module")
def tiny(home) -> Iterator[Path]:
    """The home, with a corpus and a recipe for it."""
    run = make_corpus(home)
    RECIPES.names()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RECIPES._parts, "tiny", lambda: run)
        yield home


@pytest.fixture(scope="module")
def race(tiny, one_ray) -> tuple[str, dict[str, RunRecord]]:
    """What a sweep says, and its runs by aggregator: one trial that ends well, two that fail, one stopped early."""
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


@pytest.mark.slow
def test_what_fails_stops_nothing(tiny, race):
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
    assert "image_text · tiny · whole" in said, "the comparison is shown"
    kept = Tracker.attach(tracking_uri(tiny), failed.run_id, running=False).download(ERROR).read_text()
    assert "Traceback" in kept
    assert "nothing adds up" in kept
    assert not [*(tiny / "runs").glob("sweep-????????")], "Tune's own files are gone"


@pytest.mark.slow
def test_the_worse_half_is_stopped_early_and_kept_apart(race):
    said, found = race
    poor = found[BLIND]
    assert poor.status == "KILLED"
    assert poor.tags[STOPPED] == "after epoch 1 of 3"
    assert not any(name.startswith("whole/") for name in poor.metrics)
    assert f"{BLIND} seed 0: after epoch 1 of 3, run {poor.run_id}" in said
    assert "3 runs left out, not finished" in said
    assert all_cores_are_free(), "the workers of what was stopped are gone"


def weights(run_id: str) -> dict[str, Tensor]:
    tracker = Tracker.attach(tracking_uri(home()), run_id, running=False)
    return load_file(tracker.download("model/model.safetensors"))


def process_state() -> tuple[object, ...]:
    return (
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        signal.getsignal(signal.SIGTERM),
        mlflow.active_run(),
        AGGREGATORS.names(),
    )


def test_a_trial_leaves_nothing_to_those_after_it_in_this_process(tiny, monkeypatch):
    """A trial that changes torch's settings and runs out of memory fails alone, and the next equals a run alone."""
    before = process_state()
    for place in (sweeping, training):
        monkeypatch.delattr(place, "ray_session")
    words = ("--recipes", "tiny", "--experiment", "one process", *SMALL, "--concurrent", "1")
    assert command(*words, "--aggregators", LEAKING, "mean", "max") == 1
    assert process_state() == before
    found = trained(tiny, "one process")
    assert found.pop(f"{LEAKING}/{LEAKING}").status == "FAILED"
    assert [of.status for of in found.values()] == ["FINISHED"] * 2
    for record in found.values():
        settings = Tracker.attach(tracking_uri(tiny), record.run_id, running=False).read_json("run.json")
        alone = start(replace(from_json(settings), experiment="alone"))
        assert same_weights(weights(record.run_id), weights(alone))


def test_sigterm_ends_a_sweep_in_this_process_after_a_checkpoint(tiny, capfd):
    objective = f"faulty:StoppedOnce(runs={str(tiny / 'runs')!r}, epoch=1.4, process={os.getpid()})"
    words = ("--recipes", "tiny", "--experiment", "ended", *SMALL, "--concurrent", "1")
    words += ("--objective", objective, "--aggregators", "mean", "max")
    assert command(*words) == 143
    assert "to resume: polypool train" not in capfd.readouterr().err, "the whole sweep does"
    (stopped,) = trained(tiny, "ended").values()
    assert (stopped.status, stopped.metrics["epoch"]) == ("KILLED", 1)
    assert command(*words) == 0
    found = trained(tiny, "ended")
    assert [of.status for of in found.values()] == ["FINISHED"] * 2
    assert found["mean/mean"].run_id == stopped.run_id


@pytest.mark.slow
def test_a_sweep_in_one_process_goes_on_after_a_kill_with_the_same_weights(tiny):
    objective = f"faulty:KilledOften(markers={[str(tiny / 'ended')]!r}, epochs=[1.4])"
    words = ("--recipes", "tiny", "--experiment", "killed", *SMALL, "--concurrent", "1")
    words += ("--objective", objective, "--aggregators", "mean", "max")
    if not (child := os.fork()):
        command(*words)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    (begun,) = trained(tiny, "killed").values()
    assert command(*words) == 0
    found = trained(tiny, "killed")
    assert found["mean/mean"].run_id == begun.run_id, "resumed"
    assert {of.tags["mlflow.parentRunId"] for of in found.values()} == {begun.tags["mlflow.parentRunId"]}
    for record in found.values():
        settings = Tracker.attach(tracking_uri(tiny), record.run_id, running=False).read_json("run.json")
        assert same_weights(weights(record.run_id), weights(start(from_json(settings))))


@pytest.mark.slow
def test_trials_in_processes_of_ray_after_failures_and_deaths_equal_runs_alone(tiny, one_ray):
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
def test_what_was_stopped_stays_so_unless_the_whole_is_asked_for(tiny, race, capsys):
    poor = race[1][BLIND]
    assert command(*RACE, "mean", BLIND, "--early-stop") == 0
    assert "1 stopped early before, left as they are; 0 to train" in capsys.readouterr().out
    assert command(*RACE, "mean", BLIND, "--concurrent", "1") == 0
    whole = trained(tiny, "race")[f"{BLIND}/{BLIND}"]
    assert (whole.run_id, whole.status, whole.tags[STOPPED]) == (poor.run_id, "FINISHED", "")


@pytest.mark.slow
def test_what_is_done_is_not_done_again_and_what_was_interrupted_goes_on(tiny, capsys):
    grid = ("--recipes", "tiny", "--experiment", "pairs", *SMALL, "--concurrent", "1")
    assert command(*grid, "--aggregators", FAILING, "mean") == 1
    said = capsys.readouterr().out
    found = trained(tiny, "pairs")
    assert f"(run {found[f'{FAILING}/{FAILING}'].run_id}): ArithmeticError: nothing adds up" in said
    assert "1 trained, 1 failed" in said
    done = found["mean/mean"]

    # the trial is unfinished again, with the log of a run that was killed
    unfinished = Tracker.attach(tracking_uri(tiny), done.run_id)
    with closing(Log(tiny / "runs" / done.run_id / LOG_FOLDER)) as log:
        log.artifact(unfinished.download("model"), "model")
    sweep = ("--aggregators", "mean", "max", "--text-aggregators", "mean")
    assert command(*grid, *sweep) == 0
    again = trained(tiny, "pairs")
    assert again["mean/mean"].run_id == done.run_id
    assert again["mean/mean"].status == "FINISHED"
    assert again["mean/mean"].tags[SWEEP] != done.tags[SWEEP]
    said = capsys.readouterr().out
    assert "1 interrupted before, to go on from the last checkpoint; 2 to train" in said
    figure = tiny / "runs" / "pairs-tiny-visual_by_text.png"
    assert figure.exists()
    assert str(figure) in said
    (comparison, *_) = find_runs(tracking_uri(tiny), "pairs-comparisons")
    assert Tracker.attach(tracking_uri(tiny), comparison.run_id, running=False).download(figure.name).exists()

    assert command(*grid, *sweep) == 0
    said = capsys.readouterr().out
    assert said.startswith("2 trials, 2 of them finished before and skipped; 0 to train\n")
    last = trained(tiny, "pairs")
    assert {name: run.ended for name, run in last.items()} == {name: run.ended for name, run in again.items()}

    assert command(*grid, *sweep, "--dry-run") == 0
    assert "tiny max, text mean seed 0  finished, run" in capsys.readouterr().out


@pytest.mark.parametrize("seen", [True, False], ids=["before it starts", "when it would go on with it"])
def test_a_run_that_another_process_trains_is_left_to_it(seen, tiny, capsys, monkeypatch):
    grid = ("--recipes", "tiny", "--experiment", f"held {seen}", *SMALL, "--optim.epochs", "1")
    grid += ("--concurrent", "1", "--aggregators", "mean")
    assert command(*grid) == 0
    capsys.readouterr()
    (run,) = trained(tiny, f"held {seen}").values()
    tracker = Tracker.attach(tracking_uri(tiny), run.run_id)  # unfinished again
    if not seen:
        monkeypatch.setattr(sweeping, "behind", lambda record, home: ("nobody", None))
    with ThreadPoolExecutor(1) as elsewhere:
        lease = elsewhere.submit(take_run, tracker).result()
        assert command(*grid) == (0 if seen else 1)
        lease.release()
    said = capsys.readouterr().out
    if seen:
        assert f"tiny mean seed 0 is left alone: process {os.getpid()} on " in said
    else:
        assert f"run {run.run_id} is being trained by another process (process {os.getpid()} on " in said
    assert (tracker.status(), tracker.tag(SWEEP)) == ("RUNNING", run.tags[SWEEP])


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        (["tinny", "--aggregators", "maen"], ["unknown recipe 'tinny'", "unknown aggregator 'maen'"]),
        (["--aggregators", "mean", "--seed", "3"], ["--seed: a sweep decides that itself; use --seeds"]),
        (["--aggregators", "mean", "--optim.epoch", "3"], ["--optim.epochs"]),
        (
            ["--aggregators", "mean", "--optim.epochs", "1", "--early-stop"],
            ["--early-stop needs at least 2 epochs, and tiny has fewer"],
        ),
    ],
)
def test_wrong_words_end_before_anything_starts(words, messages, tiny, capsys):
    assert command("--experiment", "none", "--recipes", "tiny", *words) == 2
    said = capsys.readouterr().err
    assert all(message in said for message in messages)
    with pytest.raises(InputError, match=r"unknown experiment 'none'|no runs are recorded"):
        find_runs(tracking_uri(tiny), "none")
