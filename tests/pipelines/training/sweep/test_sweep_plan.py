"""A sweep before it starts: its trials, what is done of them, the time, the job lines; no Ray."""

import os
import shlex
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from polypool.infra import paths
from polypool.infra.errors import InputError
from polypool.infra.registry import RECIPES
from polypool.infra.text_tables import duration
from polypool.infra.tracking import RunRecord, Tracker, tracking_uri
from polypool.pipelines.commands.train import parse
from polypool.pipelines.training.record import run_folder, tags, take_run
from polypool.pipelines.training.sweep import (
    STOPPED,
    SWEEP,
    Match,
    Plan,
    _resources,
    last_line,
    make_trials,
    match_trials,
    only_sweep,
    records_of,
    seconds,
    total,
)
from polypool.tasks.run import Run, to_json


def record(run: Run, *, status: str = "FINISHED", took: float = 100.0, trained: float = 80.0) -> RunRecord:
    of = {"tags": tags(run), "params": {"optim.epochs": str(run.optim.epochs)}}
    of |= {"metrics": {"time/train_seconds": trained}, "started": 1000.0, "ended": 1000.0 + took}
    return RunRecord(run_id="id", name="", status=status, **of)


def test_the_grid_has_every_combination_once_in_one_spelling(run):
    trials = make_trials(["tiny", "tiny"], ["mean", "kmax( k=2 )", "kmax(k=2)"], seeds=2, experiment="e")
    names = [trial.name for trial in trials.all]
    assert names == [f"tiny {a} seed {seed}" for a in ("mean", "kmax(k=2)") for seed in (0, 1)]
    assert trials.all[3].run == replace(run, aggregator="kmax(k=2)", seed=1, experiment="e")
    assert trials.metrics["tiny"].name == "rsum"


def test_text_aggregators_make_a_grid_of_pairs(run):
    trials = make_trials(["tiny"], ["mean", "max"], text_aggregators=["mean", "max"])
    pairs = [(trial.run.aggregator, trial.run.text_aggregator) for trial in trials.all]
    assert pairs == [("mean", ""), ("mean", "max"), ("max", "mean"), ("max", "")]


def test_a_recipe_keeps_its_text_aggregator_as_train_does(run, monkeypatch):
    monkeypatch.setitem(RECIPES._parts, "tiny", lambda: replace(run, text_aggregator="max"))
    (trial,) = make_trials(["tiny"], ["gpo"]).all
    assert trial.run == parse(["tiny", "--aggregator", "gpo"])


def test_all_that_is_wrong_is_said_at_once(run):
    with pytest.raises(InputError) as error:
        make_trials(["tiny", "tinny"], ["mean", "maen", "kmax(n=3)", "kmax(k"], seeds=0)
    said = str(error.value)
    for part in (
        "--seeds must be from 1 to 1,000, not 0",
        "unknown recipe 'tinny'. Did you mean 'tiny'?",
        "unknown aggregator 'maen'. Did you mean",
        "parameter of aggregator 'kmax': 'n'",
        "cannot read the spec 'kmax(k'",
    ):
        assert part in said
    with pytest.raises(InputError, match=r"--recipes names nothing.*\n.*--aggregators names nothing"):
        make_trials([], [])
    with pytest.raises(InputError, match="is an ensemble"):
        make_trials([next(n for n, r in RECIPES.usable() if not isinstance(r(), Run))], ["mean"])


FLAGS = (
    *["--optim.lr", "1", "--optim.no-drop-last", "--optim.milestones", "3", "5", "--data.visual-augment"],
    "",
)


def test_flags_mean_what_they_mean_to_train(run):
    (trial,) = make_trials(["tiny"], ["max"], flags=FLAGS).all
    assert trial.run == parse(["tiny", *FLAGS, "--aggregator", "max"])
    optim = trial.run.optim
    assert (optim.lr, optim.drop_last, optim.milestones) == (1.0, False, (3.0, 5.0))
    assert trial.run.data.visual_augment == ""


@pytest.mark.parametrize(
    ("flags", "option"),
    [
        (["--seed", "3"], "--seeds"),
        (["--cpus", "1", "--aggregator=gpo"], "--aggregators"),
        (["--text_aggregator", "gpo"], "--text-aggregators"),
        (["--recipe", "tiny"], "--recipes"),
    ],
)
def test_what_a_sweep_decides_is_no_flag(run, flags, option):
    with pytest.raises(InputError, match=f"a sweep decides that itself; use {option}$"):
        make_trials(["tiny"], ["mean"], flags=flags)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--optim.epoch", "2"], "--optim.epochs"),
        (["--cpus", "x"], "--cpus"),
        (["--optim.epochs", "-1"], "at least 0"),
        (["epochs=2"], "epochs=2"),
    ],
)
def test_a_wrong_flag_ends_the_sweep_with_2(run, flags, message, capsys):
    with pytest.raises(SystemExit) as ended:
        make_trials(["tiny"], ["mean"], flags=flags)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_times_are_those_of_the_same_aggregator_or_else_recipe(run):
    gpo = replace(run, aggregator="gpo")
    records = [record(run, took=50, trained=40), record(gpo), record(gpo, took=120), record(gpo, took=9000)]
    assert seconds(run, records) == 50
    assert seconds(gpo, records) == 120, "the median; an idle night does not count"
    assert seconds(replace(run, aggregator="max"), records) == 110
    twice = replace(run, optim=replace(run.optim, epochs=2 * run.optim.epochs))
    assert seconds(twice, records) == 90, "training takes twice as long, the rest does not"
    assert seconds(replace(run, recipe="other"), records) is None
    assert seconds(replace(run, data=replace(run.data, dataset="other")), records) is None
    assert seconds(run, [record(run, status="FAILED")]) is None
    assert total([60.0, 60.0, 30.0], 2) == 75
    assert total([100.0, 10.0], 4) == 100
    assert (total([1.0, None], 1), total([], 2)) == (None, 0.0)
    assert [duration(t) for t in (None, 4.4, 61, 3720)] == ["unknown", "4 s", "1 min 01 s", "1 h 02 min"]


def test_a_dry_run_shows_the_grid_and_lines_that_train_the_same(run):
    trials = make_trials(
        ["tiny"],
        ["mean", "kmax(k=2)"],
        text_aggregators=["mean"],
        experiment="my own",
        flags=["--optim.epochs", "2", "--data.visual-augment", ""],
    )
    uri = tracking_uri(Path.cwd() / "nowhere")
    plan = Plan(matches=tuple(match_trials(uri, trials.all, [], home=Path.cwd())), flags=trials.flags)
    text = plan.text([record(run)], concurrent=2, words=["--recipes", "tiny", "--aggregators", "kmax(k=2)"])
    lines = text.splitlines()
    assert lines[0] == "2 trials; 2 to train"
    assert lines[2] == "  tiny mean seed 0                  new, about 47 s"
    assert lines[3] == "  tiny kmax(k=2), text mean seed 0  new, about 47 s"
    assert "estimated time, 2 at once: 47 s" in lines
    assert lines[8].endswith("-- python -m polypool sweep --recipes tiny --aggregators 'kmax(k=2)'")
    jobs = [shlex.split(line) for line in lines if "polypool train" in line]
    head = ["ray", "job", "submit", "--working-dir", ".", "--", "python", "-m", "polypool", "train"]
    assert [words[: len(head)] for words in jobs] == [head, head]
    assert [parse(words[len(head) :]) for words in jobs] == [trial.run for trial in trials.all]
    assert "time unknown" in plan.text([], concurrent=1, words=[])


@pytest.mark.parametrize(
    ("gpus", "concurrent", "most", "share"),
    [
        (1, 0, 1, 1.0),
        (1, 1, 1, 1.0),
        (1, 7, 7, 0.1428),
        (2, 3, 3, 0.5),
        (4, 2, 2, 1.0),
        (0, 5, 5, None),
        (0, 12, 8, None),
    ],
)
def test_trials_share_a_gpu_where_more_are_asked_for_than_there_are(
    run, monkeypatch, gpus, concurrent, most, share
):
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 8.0, "GPU": float(gpus)})
    matches = [Match(trial=trial) for trial in make_trials(["tiny"], ["mean"], flags=["--cpus", "1"]).all]
    at_once, reserved = _resources(matches, concurrent=concurrent)
    assert (at_once, reserved["CPU"], reserved.get("GPU")) == (most, 1, share)


def test_one_sweep_of_an_experiment_at_a_time(tmp_path):
    def second() -> str:
        with pytest.raises(InputError) as refused, only_sweep(tmp_path, "a b"):
            pass
        return str(refused.value)

    with only_sweep(tmp_path, "a b"), only_sweep(tmp_path, "other"), ThreadPoolExecutor(1) as thread:
        said = thread.submit(second).result()
        assert said.startswith(f"experiment 'a b': another sweep of it is at work (process {os.getpid()} on ")
    with ThreadPoolExecutor(1) as thread, only_sweep(tmp_path, "a b"):
        pass


def test_an_error_is_told_by_its_last_line():
    assert last_line("Traceback\n  File x\nValueError: no\n\n") == "ValueError: no"


def keep_run(run: Run, *, settings: Any = None) -> str:
    """Record a run that was never trained as finished; return its id."""
    home = paths.home()
    place = {"uri": tracking_uri(home), "home": home}
    tracker = Tracker.start(run.experiment, **place, name="made", tags=tags(run), params=to_json(run))
    tracker.json("run.json", settings or to_json(run))
    tracker.finish()
    return tracker.run_id


def test_runs_that_do_not_stand_for_a_new_trial_are_named(run, tmp_path):
    uri = tracking_uri(tmp_path)
    trials = make_trials(["tiny"], ["mean", "max", "gpo", "lip"]).all
    keep_run(trials[3].run, settings={"colour": "blue"})
    failed = keep_run(trials[0].run)
    Tracker.attach(uri, failed).finish("FAILED")
    bare = keep_run(trials[1].run)
    (tmp_path / "mlartifacts" / bare / "artifacts" / "run.json").unlink()
    found = match_trials(uri, trials, records_of(uri, "polypool"), home=tmp_path)
    assert [each.state for each in found] == ["new"] * 4
    first, lost, none, foreign = (each.note for each in found)
    assert (first, none) == (f"run {failed} failed", "")
    assert lost.startswith(
        f"run {bare} may be it, but its settings cannot be used: run {bare} has no artifact run.json"
    )
    assert "its settings cannot be used: run.json: unknown field 'colour'" in foreign
    lines = Plan(matches=tuple(found)).text([], concurrent=1, words=()).splitlines()
    assert lines[2].endswith(f"tiny mean seed 0  new, time unknown; run {failed} failed")
    assert lines[4].endswith("time unknown")


def test_what_somebody_trains_is_left_to_them_and_what_nobody_trains_goes_on(run, tmp_path):
    uri = tracking_uri(tmp_path)
    trials = make_trials(["tiny"], ["mean", "max", "gpo"]).all
    alive, dead, elsewhere = (keep_run(trial.run) for trial in trials)
    for run_id in (alive, dead, elsewhere):
        Tracker.attach(uri, run_id)  # running again
    run_folder(tmp_path, dead).mkdir(parents=True)
    with ThreadPoolExecutor(1) as somebody:
        lease = somebody.submit(take_run, Tracker.attach(uri, alive)).result()
        found = match_trials(uri, trials, records_of(uri, "polypool"), home=tmp_path)
        somebody.submit(lease.release).result()
    expected = [("running", alive), ("unfinished", dead), ("new", "")]
    assert [(each.state, each.run_id) for each in found] == expected
    assert found[0].note == f"process {os.getpid()} on {socket.gethostname()} is at work"
    assert found[2].note == f"run {elsewhere} may be it, and at work elsewhere: its folder is not here"
    plan = Plan(matches=tuple(found))
    assert [match.run_id for match in plan.to_do] == [dead, ""]
    assert plan.summary() == (
        "3 trials; 1 at work now, left to whoever trains them; 1 interrupted before, to go on from the last "
        "checkpoint; 2 to train"
    )
    (again, *_) = match_trials(uri, trials, records_of(uri, "polypool"), home=tmp_path)
    assert again.state == "unfinished", "whoever held it let go"


def test_trials_are_matched_by_tags_and_settings(run, tmp_path):
    uri = tracking_uri(tmp_path)
    assert records_of(uri, "polypool") == [], "no store yet"
    trials = make_trials(["tiny"], ["mean", "max", "gpo", "kmax(k=2)"], seeds=2).all
    by_name = {trial.name: trial.run for trial in trials}
    keep_run(replace(by_name["tiny mean seed 0"], cpus=7, log_every=3, text_aggregator="mean"))
    other = by_name["tiny mean seed 1"]
    keep_run(replace(other, optim=replace(other.optim, epochs=99)))

    def ended(name: str, status: str, **more: str) -> str:
        run_id = keep_run(by_name[name])
        tracker = Tracker.attach(uri, run_id)
        tracker.tags(more)
        if status != "RUNNING":
            tracker.finish(status)
        return run_id

    ended("tiny max seed 0", "FAILED", **{SWEEP: "s"})
    ended("tiny max seed 1", "RUNNING")
    killed = ended("tiny gpo seed 0", "RUNNING", **{SWEEP: "s"})
    stopped = ended("tiny gpo seed 1", "KILLED", **{SWEEP: "s", STOPPED: "after epoch 2 of 6"})
    found = match_trials(uri, trials, records_of(uri, "polypool"), home=tmp_path)
    states = ["finished", *["new"] * 3, "unfinished", "stopped", *["new"] * 2]
    assert [each.state for each in found] == states
    assert (found[4].run_id, found[5].run_id, found[5].detail) == (killed, stopped, "after epoch 2 of 6")
    plan = Plan(matches=tuple(found))
    assert plan.summary() == (
        "8 trials, 1 of them finished before and skipped; 1 interrupted before, to go on from the last checkpoint; "
        "1 stopped early before, to go on, since --early-stop is not given; 7 to train"
    )
    assert len(replace(plan, early_stop=True).to_do) == 6
    assert records_of(uri, "another") == []
