"""The run that stands for a sweep in MLflow, and whose children the runs are that it begins."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from polypool.infra.errors import InputError
from polypool.infra.process.stopping import Stopped
from polypool.infra.tracking import RunRecord, Tracker, find_runs, tracking_uri
from polypool.pipelines.commands.sweep import SweepOptions, sweep
from polypool.pipelines.comparison.comparison import compare
from polypool.pipelines.comparison.runs import list_runs
from polypool.pipelines.models.trained import load
from polypool.pipelines.training import sweep as module
from polypool.pipelines.training import train as training
from polypool.pipelines.training.sweep import Match, Plan, Row, best_of, description, make_trials, train_trial

pytestmark = pytest.mark.usefixtures("run")
FLAGS = ("--cpus", "1", "--optim.epochs", "1", "--no-figures")
FAILING = "failing_aggregator:Failing"


def swept(*aggregators: str, seeds: int = 1) -> bool:
    options = SweepOptions(recipes=("tiny",), aggregators=aggregators, seeds=seeds, concurrent=1)
    return sweep(options, flags=FLAGS)


def recorded(home: Path) -> tuple[list[RunRecord], dict[str, RunRecord]]:
    """Return the runs of sweeps, first ones first, and the trained ones by aggregator."""
    found = find_runs(tracking_uri(home), "polypool", finished=False)[::-1]
    trained = {of.tags["aggregator"]: of for of in found if of.tags["kind"] == "train"}
    return [of for of in found if of.tags["kind"] == "sweep"], trained


def parent_of(record: RunRecord) -> str:
    return record.tags.get("mlflow.parentRunId", "")


def test_a_sweep_has_its_plan_its_runs_and_the_best_of_them(tmp_path):
    assert not swept("mean", "max")
    (parent,), trained = recorded(tmp_path)
    assert (parent.status, parent.name) == ("FINISHED", "sweep of tiny, 2 trials")
    assert {parent_of(of) for of in trained.values()} == {parent.run_id}
    plan = {"recipes": ["tiny"], "aggregators": ["mean", "max"], "text_aggregators": [], "seeds": 1}
    plan |= {"early_stop": False, "flags": [*FLAGS], "trials": 2}
    assert {name: json.loads(value.lower()) for name, value in parent.params.items()} == plan
    best = max(trained.values(), key=lambda of: of.metrics["dev/best_rsum"])
    assert parent.tags["best.tiny"] == best.run_id
    assert parent.metrics == {"best/tiny/rsum": best.metrics["dev/best_rsum"]}
    note = parent.tags["mlflow.note.content"]
    assert note.startswith(f"Best of tiny on `val`: tiny {best.tags['aggregator']} seed 0, rsum ")
    assert "(not begun here)" not in note
    listed = Tracker.attach(tracking_uri(tmp_path), parent.run_id, running=False).read_json("trials.json")
    assert [row[2] for row in listed["data"]] == [of.run_id for of in trained.values()]

    ended = parent.ended
    assert not swept("mean", "max"), "all is done"
    assert [of.ended for of in recorded(tmp_path)[0]] == [ended]
    # it is taken for no run that was trained
    found = compare(tracking_uri(tmp_path), "polypool")
    assert (len(found.groups), sum(len(row.runs) for row in found.groups[0].rows), found.notes) == (1, 2, ())
    assert {of["run_id"] for of in list_runs(tracking_uri(tmp_path), "polypool", home=tmp_path)} == {
        of.run_id for of in trained.values()
    }
    with pytest.raises(InputError, match="stands for a sweep; give one of its runs"):
        load(parent.run_id)


def test_a_run_that_was_there_keeps_its_parent_and_another_sweep_notes_it(tmp_path, run):
    optim = replace(run.optim, epochs=1)
    alone = training.start(replace(run, aggregator="gpo", cpus=1, optim=optim, figures=False))
    swept("mean")
    swept("mean", "gpo", "max")
    (first, second), trained = recorded(tmp_path)
    parents = {name: parent_of(of) for name, of in trained.items()}
    assert parents == {"gpo": "", "mean": first.run_id, "max": second.run_id}
    rows = [line for line in second.tags["mlflow.note.content"].splitlines() if line.startswith("| tiny")]
    assert [("finished before" in row, "(not begun here)" in row) for row in rows] == [(True, True)] * 2 + [
        (False, False)
    ]
    assert alone in rows[1]
    assert second.tags["sweep_plan"] != first.tags["sweep_plan"]


def test_a_sweep_that_was_interrupted_goes_on_under_its_parent(tmp_path, monkeypatch):
    def stopped(number, **arguments):
        if number:
            raise Stopped
        return train_trial(number, **arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module, "train_trial", stopped)
        with pytest.raises(Stopped):
            swept("mean", "max")
    (parent,), trained = recorded(tmp_path)
    assert (parent.status, [*trained]) == ("KILLED", ["mean"])
    assert not swept("max", "mean"), "the same trials in another order"
    (again,), trained = recorded(tmp_path)
    assert (again.run_id, again.status) == (parent.run_id, "FINISHED")
    assert {parent_of(of) for of in trained.values()} == {parent.run_id}
    assert "(not begun here)" not in again.tags["mlflow.note.content"]

    Tracker.attach(tracking_uri(tmp_path), again.run_id)  # killed before it could say so
    assert not swept("mean", "max")
    assert recorded(tmp_path)[0][0].status == "FINISHED"


def test_a_sweep_fails_where_a_trial_does_and_its_best_is_one_that_ended_well(tmp_path):
    assert swept(FAILING, "mean")
    (parent,), trained = recorded(tmp_path)
    assert (parent.status, trained[FAILING].status) == ("FAILED", "FAILED")
    assert parent.tags["best.tiny"] == trained["mean"].run_id
    assert (
        f"| tiny {FAILING} seed 0 | \u2013 | failed | {trained[FAILING].run_id} |"
        in (parent.tags["mlflow.note.content"])
    )


def test_a_long_sweep_is_described_as_far_as_there_is_room():
    of = {"how": "trained", "metric": "rsum", "best": 1.0, "parent": "p"}
    ended = [Row(name=f"coco gpo seed {seed}", run_id=f"{seed:032}", **of) for seed in range(200)]
    text = description(ended, {"coco": ended[3]}, own="p")
    assert len(text) < 5100
    shown = text.count("| coco gpo")
    assert 20 < shown < 200
    assert text.endswith(f"and {200 - shown} more, which `trials.json` lists.")


def test_the_best_is_one_that_was_trained_to_its_end_by_what_is_better():
    trials = make_trials(["tiny"], ["mean", "max", "gpo", "lip"])
    matches = tuple(Match(trial=trial) for trial in trials.all)
    ways = (("stopped after epoch 1 of 3", 9.0), ("trained", 3.0), ("finished before", 5.0), ("failed", 7.0))
    ended = [
        Row(name=trial.name, how=how, run_id="r", metric="rsum", best=best, parent="")
        for trial, (how, best) in zip(trials.all, ways, strict=True)
    ]
    for higher, best in ((True, "tiny gpo seed 0"), (False, "tiny max seed 0")):
        metric = replace(trials.metrics["tiny"], higher_is_better=higher)
        assert (
            best_of(Plan(matches=matches, trials=replace(trials, metrics={"tiny": metric})), ended)[
                "tiny"
            ].name
            == best
        )
