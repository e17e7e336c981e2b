"""Matching of recorded runs with the trials of a sweep."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from polypool.infra import paths
from polypool.infra.lease.on_disk import Holder
from polypool.infra.tracking import Tracker, tracking_uri
from polypool.pipelines.training.recording import tags
from polypool.pipelines.training.run_folder import run_folder, take_run
from polypool.pipelines.training.sweep.plan import Plan
from polypool.pipelines.training.sweep.trials import STOPPED, SWEEP, make_trials, match_trials, records_of
from polypool.tasks.run import Run, to_json


def keep_run(run: Run, *, settings: Any = None) -> str:
    """Record a run that was never trained as finished; return its id."""
    home = paths.home()
    place = {"uri": tracking_uri(home), "home": home}
    tracker = Tracker.start(run.experiment, **place, name="made", tags=tags(run), params=to_json(run))
    tracker.json("run.json", settings or to_json(run))
    tracker.finish()
    return tracker.run_id


def test_runs_that_do_not_stand_for_a_new_trial_are_named(run: Run, tmp_path: Path) -> None:
    uri = tracking_uri(tmp_path)
    trials = make_trials(["tiny"], ["mean", "max", "gpo"]).all
    failed = keep_run(trials[0].run)
    Tracker.attach(uri, failed).finish("FAILED")
    bare = keep_run(trials[1].run)
    (tmp_path / "mlartifacts" / bare / "artifacts" / "run.json").unlink()
    found = match_trials(uri, trials, records_of(uri, "polypool"), home=tmp_path)
    assert [each.state for each in found] == ["new", "new", "new"]
    first, lost, none = (each.note for each in found)
    assert (first, none) == (f"run {failed} failed", "")
    assert lost.startswith(
        f"run {bare} may be it, but its settings cannot be used: run {bare} has no artifact run.json"
    )
    lines = Plan(matches=tuple(found)).text([], concurrent=1, words=()).splitlines()
    assert lines[2].endswith(f"tiny mean seed 0  new, time unknown; run {failed} failed")
    assert lines[4].endswith("time unknown")


def test_what_somebody_trains_is_left_to_them_and_what_nobody_trains_goes_on(
    run: Run, tmp_path: Path
) -> None:
    uri = tracking_uri(tmp_path)
    trials = make_trials(["tiny"], ["mean", "max", "gpo"]).all
    alive, dead, elsewhere = (keep_run(trial.run) for trial in trials)
    for run_id in (alive, dead, elsewhere):
        Tracker.attach(uri, run_id)  # running again
    run_folder(tmp_path, dead).mkdir(parents=True)
    with ThreadPoolExecutor(1) as somebody:
        lease = somebody.submit(take_run, Tracker.attach(uri, alive)).result()
        found = match_trials(uri, trials, records_of(uri, "polypool"), home=tmp_path)
        lease.release()
    assert [(each.state, each.run_id) for each in found] == [
        ("running", alive),
        ("unfinished", dead),
        ("new", ""),
    ]
    assert found[0].note == f"process {os.getpid()} on {Holder.this().host} is at work"
    assert found[2].note == f"run {elsewhere} may be it, and at work elsewhere: its folder is not here"
    plan = Plan(matches=tuple(found))
    assert [match.run_id for match in plan.to_do] == [dead, ""]
    assert plan.summary() == (
        "3 trials; 1 at work now, left to whoever trains them; 1 interrupted before, to go on from the last "
        "checkpoint; 2 to train"
    )
    (again, *_) = match_trials(uri, trials, records_of(uri, "polypool"), home=tmp_path)
    assert again.state == "unfinished", "whoever held it let go"


def test_trials_are_matched_by_tags_and_settings(run: Run, tmp_path: Path) -> None:
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
    assert [each.state for each in found] == [
        "finished",
        *("new", "new", "new"),
        *("unfinished", "stopped"),
        *("new", "new"),
    ]
    assert (found[4].run_id, found[5].run_id, found[5].stopped) == (killed, stopped, "after epoch 2 of 6")
    plan = Plan(matches=tuple(found))
    assert plan.summary() == (
        "8 trials, 1 of them finished before and skipped; 1 interrupted before, to go on from the last checkpoint; "
        "1 stopped early before, to go on, since --early-stop is not given; 7 to train"
    )
    assert len(replace(plan, early_stop=True).to_do) == 6
    assert records_of(uri, "another") == []


def test_a_lost_or_foreign_description_is_no_match(run: Run, tmp_path: Path) -> None:
    uri = tracking_uri(tmp_path)
    (trial,) = make_trials(["tiny"], ["mean"]).all
    keep_run(trial.run, settings={"colour": "blue"})
    lost = Tracker.attach(uri, keep_run(trial.run), running=False)
    (lost.download("run.json")).unlink()
    assert match_trials(uri, [trial], records_of(uri, "polypool"), home=tmp_path)[0].state == "new"
    keep_run(trial.run)
    assert match_trials(uri, [trial], records_of(uri, "polypool"), home=tmp_path)[0].state == "finished"
