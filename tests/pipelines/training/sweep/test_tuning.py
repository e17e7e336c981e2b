"""Sweeps that tune every aggregator with the same budget, and their final runs."""

import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from polypool.infra.errors import InputError
from polypool.infra.tracking import RunRecord, Tracker, find_runs, tracking_uri
from polypool.pipelines.commands.sweep import SweepOptions, sweep
from polypool.pipelines.comparison.comparison import compare
from polypool.pipelines.training import sweep as module
from polypool.pipelines.training.record import tuned_of
from polypool.pipelines.training.sweep import Tuning, _key, choose, make_plan, make_tuning
from polypool.tasks.retrieval import Retrieval

pytestmark = pytest.mark.usefixtures("run")
FLAGS = ("--cpus", "1", "--optim.epochs", "1", "--no-figures", "--optim.lr", "0.01")
FAILING = "failing_aggregator:Failing"
CHOICES = ("optim.lr=1e-4,1e-2", "aggregator.lr=0.1,1")


def tuning(
    *aggregators: str, settings=CHOICES, budget: int = 3, sample: int = 0, trial_seeds: int = 1
) -> Tuning:
    plan = make_plan(["tiny"], aggregators, flags=FLAGS)
    return make_tuning(
        plan, settings, text_aggregators=False, budget=budget, sample=sample, trial_seeds=trial_seeds
    )


def swept(*aggregators: str, choose=CHOICES, budget: int = 2, **more) -> bool:
    options = {"recipes": ("tiny",), "aggregators": aggregators, "choose": choose, "budget": budget, **more}
    return sweep(SweepOptions(**options, concurrent=1), flags=FLAGS)


def recorded(home: Path) -> tuple[list[RunRecord], list[RunRecord], list[RunRecord]]:
    """Return the runs of sweeps, the tuning trials and the final runs, each oldest first."""
    found = find_runs(tracking_uri(home), "polypool", finished=False)[::-1]
    trained = [of for of in found if of.tags["kind"] == "train"]
    trials = [of for of in trained if of.params["test"] == "False"]
    return [of for of in found if of.tags["kind"] == "sweep"], trials, [x for x in trained if x not in trials]


def test_trials_start_at_recipe_and_fill_budget():
    made = tuning("mean", "gpo")
    trials = made.plan.trials
    assert [trial.tunes for trial in trials] == ["mean"] * 2 + ["gpo"] * 3
    assert {(trial.run.seed, trial.run.test) for trial in trials} == {(1000, False)}
    assert trials[2].chosen == (("aggregator.lr", "1.0"), ("optim.lr", "0.01"))
    (base,) = make_plan(["tiny"], ["gpo"], flags=FLAGS).trials
    assert replace(trials[2].run, seed=0, test=True) == base.run
    slow = next(trial.run.optim for trial in trials if ("aggregator.lr", "0.1") in trial.chosen)
    assert slow.lr_factors == (("visual.aggregator", 0.1), ("text.aggregator", 0.1))
    assert made.notes == ["tiny: 2 of 2 points each: mean", "tiny: 3 of 4 points each: gpo"]


def test_recipe_files_are_tuned_on_their_own_data(made, tmp_path):
    data = f"{{corpus: {made.data.corpus}, features: {made.data.features}}}"
    (file := tmp_path / "mine.yaml").write_text(
        f"base: image_text\nvisual: regions(width=16)\ndata: {data}\n"
    )
    plan = make_plan([str(file)], ["mean"])
    found = make_tuning(plan, ["optim.lr=0.001,0.002"], text_aggregators=False, budget=2, sample=0)
    assert [trial.run.optim.lr for trial in found.plan.trials] == [0.001, 0.002]


def test_runs_match_only_with_equal_tuning():
    made = tuning("kmax(k=5)", settings=["kmax.k=1,5"], budget=2)
    (trial, _) = made.plan.trials
    trial = replace(trial, tuned=made.tuned(trial, sweep="one"))
    same = replace(trial, tuned=replace(trial.tuned, sweep="another"))
    others = [
        ("budget", 3),
        ("trial_seeds", 3),
        ("seed", 1),
        ("space", (("optim.lr", ("1.0",)),)),
        ("own", ()),
        ("early_stop", True),
    ]
    changed = [replace(trial, tuned=replace(trial.tuned, **{name: value})) for name, value in others]
    keys = {_key(of.tags) for of in (trial, same, *changed, replace(trial, tuned=None))}
    assert _key(trial.tags) == _key(same.tags)
    assert len(keys) == 8


@pytest.mark.parametrize(
    ("settings", "budget", "message"),
    [
        (CHOICES, 0, "--choose needs --budget, .*: at least 1, not 0"),
        (["kmax.k=1,0,-1"], 1, r"tiny kmax with kmax.k=0: .*\n.*tiny kmax with kmax.k=-1: "),
        (["optim.optimiser=adamw,adamw(colour=1)"], 2, "with optim.optimiser=adamw.colour=1.: .*colour"),
    ],
)
def test_invalid_tuning_settings_are_refused_before_start(settings, budget, message):
    with pytest.raises(InputError, match=message):
        tuning("mean", "kmax(k=5)", settings=settings, budget=budget)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"choose": ()}, "name their settings with --choose"),
        ({"seeds": 0}, "--seeds must be at least 1, not 0"),
        ({"seeds": 1001}, "--seeds must be below 1,001, not 1001"),
        ({"first_seed": -1}, "--first-seed must be at least 0, not -1"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        swept("mean", **options)


def test_best_complete_trial_is_chosen_and_ties_go_to_first(monkeypatch):
    made = tuning("gpo", "lip", "max", budget=4)
    ends = [("trained", 1.0), ("stopped", 9.0), ("finished before", 5.0), ("trained", 5.0)]
    ends += [("failed", math.nan)] * 4 + [("trained", 2.0)] * 2
    plan = made.plan
    assert [trial.tunes for trial in plan.trials] == ["gpo"] * 4 + ["lip"] * 4 + ["max"] * 2
    for sign, run_id, best in ((1, "r2", 5.0), (-1, "r0", 1.0)):
        rows = [
            {"recipe": "tiny", "tunes": trial.tunes, "run_id": f"r{n}", "best": best, "score": sign * best}
            | {"whole": how in ("trained", "finished before")}
            for n, (trial, (how, best)) in enumerate(zip(plan.trials, ends, strict=True))
        ]
        gpo, lip, top = choose(plan, pd.DataFrame(rows), sizes=made.sizes).to_dict("records")
        assert (gpo["run_id"], gpo["best"], gpo["default"]) == (run_id, best, 1.0)
        assert (gpo["whole"], gpo["trials"], gpo["space"], gpo["trial"]) == (3, 4, 4, int(run_id[1]))
        assert (math.isnan(lip["best"]), lip["trial"], lip["chosen"], top["best"]) == (True, -1, "", 2.0)


def test_early_stopping_compares_trials_within_aggregator(monkeypatch):
    """Otherwise all trials of a slowly learning aggregator would be stopped."""
    calls = []

    def note(work, count, *, halving, **_):
        calls.append((halving.metric, [trial.tunes for trial in work.keywords["trials"]]))

    monkeypatch.setattr(module, "ray_session", lambda **_: nullcontext())
    monkeypatch.setattr(module, "_resources", lambda trials, **_: (1, {"CPU": 1.0}))
    monkeypatch.setattr(module, "run_side_by_side", note)
    plan = replace(tuning("mean", "gpo", budget=2).plan, early_stop=True)
    assert module.carry_out(plan, concurrent=1) == []
    assert calls == [("dev/rsum", ["mean"] * 2), ("dev/rsum", ["gpo"] * 2)]


def test_trial_score_is_mean_over_seeds():
    made = tuning("gpo", budget=3, sample=2, trial_seeds=2)
    seeds = [1200, 1201] * 3
    assert [trial.run.seed for trial in made.plan.trials] == seeds
    rows = pd.DataFrame(
        {"recipe": "tiny", "tunes": "gpo", "run_id": [*"abcdef"], "best": [4.0, 6.0, 9.0, 9.0, 8.0, 3.0]}
    )
    rows = rows.assign(score=rows["best"], whole=[True, True, True, False, True, True])
    (row,) = choose(made.plan, rows, sizes=made.sizes, seeds=2).to_dict("records")
    assert (row["run_id"], row["trial"], row["best"], row["default"]) == ("e", 4, 5.5, 5.0)
    assert (row["trials"], row["whole"]) == (3, 2)


@pytest.mark.usefixtures("without_comparison")
def test_trials_use_val_only_and_final_run_uses_best_settings(tmp_path, monkeypatch, capsys):
    scored, evaluate = [], Retrieval.evaluate

    def spy(self, model, split, protocol, **more):
        scored.append((self.run.test, split))
        return evaluate(self, model, split, protocol, **more)

    monkeypatch.setattr(Retrieval, "evaluate", spy)
    options = {"trial_seeds": 2, "first_seed": 7}
    assert not swept("gpo", **options)
    assert scored == [(False, "val")] * 4 + [(True, "val"), (True, "test")]
    (parent,), trials, final = recorded(tmp_path)
    assert {of.tags["mlflow.parentRunId"] for of in (*trials, *final)} == {parent.run_id}
    assert parent.params["budget"] == "2", "compare hides the trials of sweeps with a budget"
    pairs = [trials[:2], trials[2:]]
    best = max(pairs, key=lambda pair: sum(of.metrics["dev/best_rsum"] for of in pair))[0]
    assert [of.tags["seed"] for of in final] == ["7"]
    for setting in ("optim.lr", "optim.lr_factors"):
        assert {of.params[setting] for of in final} == {best.params[setting]}
    tuned = tuned_of(final[0].tags, run="r")
    assert (tuned.budget, tuned.sweep, tuned.aggregator) == (2, parent.run_id, "gpo")
    listed = Tracker.attach(tracking_uri(tmp_path), parent.run_id, running=False).read_json("tuning.json")
    assert (listed["budget"], listed["shared"]["optim.lr"]) == (2, [1e-4, 1e-2])
    assert [choice["aggregator"] for choice in listed["chosen"]] == ["gpo"]
    assert parent.tags["best.tiny"] in {of.run_id for of in final}
    assert "chosen on val" in parent.tags["mlflow.note.content"]
    printed, _, after = capsys.readouterr().out.partition("\nnext:")
    assert printed.rstrip().endswith(" 2      4"), "the table of choices must be printed last"
    assert "mlflow ui --backend-store-uri" in after

    assert not swept("gpo", **options), "repeating a finished sweep must succeed"
    assert not swept("gpo", **options, dry_run=True)
    assert "runs with the best settings:" in capsys.readouterr().out
    assert len(scored) == 6
    assert not swept("gpo", "lip", seeds=2, dry_run=True)
    assert "then 4 runs with the best settings" in capsys.readouterr().out


@pytest.mark.slow
def test_tables_separate_tuned_runs_and_omit_trials(tmp_path):
    assert not swept("mean", "gpo")
    untuned = SweepOptions(recipes=("tiny",), aggregators=("mean", "gpo"), concurrent=1)
    assert not sweep(untuned, flags=FLAGS)
    groups = compare(tracking_uri(tmp_path), "polypool").groups
    assert [(group.tuned, len(group.rows)) for group in groups] == [
        ("", 2),
        ("tuned by 2 trials each over aggregator.lr=0.1,1.0; optim.lr=0.0001,0.01, sample 0", 2),
    ]
    assert not swept("mean", "gpo", budget=3)  # another budget, another table
    assert [len(group.rows) for group in compare(tracking_uri(tmp_path), "polypool").groups] == [2, 2, 2]
    points = {(of.params["optim.lr"], of.params["optim.lr_factors"]) for of in recorded(tmp_path)[1]}
    assert len(recorded(tmp_path)[1]) == 2 + len(points), "trials common to both samples must be reused"


@pytest.mark.slow
def test_aggregator_with_only_failed_trials_is_skipped(tmp_path, capsys):
    assert swept(FAILING, "mean")
    (parent,), trials, final = recorded(tmp_path)
    assert parent.status == "FAILED"
    assert [of.status for of in trials].count("FAILED") == 2
    assert {of.tags["aggregator"] for of in final} == {"mean"}
    assert f"tiny {FAILING} is not run, as none of its trials was trained" in capsys.readouterr().out
