"""A sweep before it starts: its trials, what is done of them, the time, the job lines; no Ray."""

import os
import shlex
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from polypool.infra import paths
from polypool.infra.errors import InputError
from polypool.infra.registry import RECIPES
from polypool.infra.text_tables import duration
from polypool.infra.tracking import RunRecord, Tracker, tracking_uri
from polypool.pipelines.commands.train import parse
from polypool.pipelines.recipes.arguments import read_run
from polypool.pipelines.training.record import run_folder, tags, take_run
from polypool.pipelines.training.sweep import (
    STOPPED,
    SWEEP,
    Match,
    Plan,
    Space,
    _nearest,
    _resources,
    make_trials,
    match_trials,
    only_sweep,
    plan_of,
    read_space,
    records_of,
    scaled,
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
    plan = plan_of(trials, [])
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


def test_one_sweep_of_an_experiment_at_a_time(new_home):
    def second() -> str:
        with pytest.raises(InputError) as refused, only_sweep("a b"):
            pass
        return str(refused.value)

    with only_sweep("a b"), only_sweep("other"), ThreadPoolExecutor(1) as thread:
        said = thread.submit(second).result()
        assert said.startswith(f"experiment 'a b': another sweep of it is at work (process {os.getpid()} on ")
    with ThreadPoolExecutor(1) as thread, only_sweep("a b"):
        pass


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
    trials = make_trials(["tiny"], ["mean", "max", "gpo", "lip"])
    keep_run(trials.all[3].run, settings={"colour": "blue"})
    failed = keep_run(trials.all[0].run)
    Tracker.attach(uri, failed).finish("FAILED")
    bare = keep_run(trials.all[1].run)
    (tmp_path / "mlartifacts" / bare / "artifacts" / "run.json").unlink()
    found = match_trials(trials.all, records_of("polypool"))
    assert [each.state for each in found] == ["new"] * 4
    first, lost, none, foreign = (each.note for each in found)
    assert (first, none) == (f"run {failed} failed", "")
    assert lost.startswith(
        f"run {bare} may be it, but its settings cannot be used: run {bare} has no artifact run.json"
    )
    assert "its settings cannot be used: run.json: unknown field 'colour'" in foreign
    lines = Plan(trials=trials, matches=found).text([], concurrent=1, words=()).splitlines()
    assert lines[2].endswith(f"tiny mean seed 0  new, time unknown; run {failed} failed")
    assert lines[4].endswith("time unknown")


def test_what_somebody_trains_is_left_to_them_and_what_nobody_trains_goes_on(run, tmp_path):
    uri = tracking_uri(tmp_path)
    trials = make_trials(["tiny"], ["mean", "max", "gpo"])
    alive, dead, elsewhere = (keep_run(trial.run) for trial in trials.all)
    for run_id in (alive, dead, elsewhere):
        Tracker.attach(uri, run_id)  # running again
    run_folder(tmp_path, dead).mkdir(parents=True)
    with ThreadPoolExecutor(1) as somebody:
        lease = somebody.submit(take_run, Tracker.attach(uri, alive)).result()
        found = match_trials(trials.all, records_of("polypool"))
        somebody.submit(lease.release).result()
    expected = [("running", alive), ("unfinished", dead), ("new", "")]
    assert [(each.state, each.run_id) for each in found] == expected
    assert found[0].note == f"process {os.getpid()} on {socket.gethostname()} is at work"
    assert found[2].note == f"run {elsewhere} may be it, and at work elsewhere: its folder is not here"
    plan = Plan(trials=trials, matches=found)
    assert [match.run_id for match in plan.to_do] == [dead, ""]
    assert plan.summary() == (
        "3 trials; 1 at work now, left to whoever trains them; 1 interrupted before, to go on from the last "
        "checkpoint; 2 to train"
    )
    (again, *_) = match_trials(trials.all, records_of("polypool"))
    assert again.state == "unfinished", "whoever held it let go"


def test_trials_are_matched_by_tags_and_settings(run, tmp_path):
    uri = tracking_uri(tmp_path)
    assert records_of("polypool") == [], "no store yet"
    trials = make_trials(["tiny"], ["mean", "max", "gpo", "kmax(k=2)"], seeds=2)
    by_name = {trial.name: trial.run for trial in trials.all}
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
    found = match_trials(trials.all, records_of("polypool"))
    states = ["finished", *["new"] * 3, "unfinished", "stopped", *["new"] * 2]
    assert [each.state for each in found] == states
    assert (found[4].run_id, found[5].run_id, found[5].detail) == (killed, stopped, "after epoch 2 of 6")
    plan = Plan(trials=trials, matches=found)
    assert plan.summary() == (
        "8 trials, 1 of them finished before and skipped; 1 interrupted before, to go on from the last checkpoint; "
        "1 stopped early before, to go on, since --early-stop is not given; 7 to train"
    )
    assert len(replace(plan, trials=replace(trials, early_stop=True)).to_do) == 6
    assert records_of("another") == []


LR, DECAY, FACTOR = ("optim.lr=1e-3,2e-3,4e-3", "optim.weight-decay=0.01, 0.1", "aggregator.lr=0.1,1")


def space(*settings: str, aggregators=("mean", "gpo", "kmax(k=5)"), **more) -> Space:
    return read_space(settings, aggregators=aggregators, read=lambda flags: read_run("tiny", flags), **more)


def tried(
    of: Space, run: Run, aggregator: str, *, weights: bool = True, budget: int = 1000, seed: int = 0
) -> list[dict[str, object]]:
    points = of.points(replace(run, aggregator=aggregator), weights=weights, budget=budget, seed=seed)
    return [*map(dict, points)]


def test_values_are_read_as_train_and_specs_read_them(run):
    found = space(LR, "optim.optimiser=lion,adamw(amsgrad=True, betas=(0.9, 0.95))", FACTOR, "kmax.k=1,2,1")
    optimisers = ("lion", "adamw(amsgrad=True, betas=(0.9, 0.95))")
    assert found.shared == {
        "aggregator.lr": (0.1, 1.0),
        "optim.lr": (0.001, 0.002, 0.004),
        "optim.optimiser": optimisers,
    }
    assert [*found.shared] == sorted(found.shared)
    assert found.own == {"kmax.k": (1, 2)}
    assert found == space("kmax.k=1,2", FACTOR, "optim.optimiser=" + ",".join(optimisers), LR)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["optim.lrr=1"], "unknown setting of --choose: 'optim.lrr'. Did you mean 'optim.lr'?"),
        (["optim.milestones=1"], "unknown setting of --choose: 'optim.milestones'"),
        (["optim.drop_last=True"], "unknown setting of --choose"),
        (["objective=triplet"], "unknown setting of --choose: 'objective'"),
        (["kmax.n=1"], "unknown setting of --choose: 'kmax.n'. Did you mean 'kmax.k'?"),
        (["lip.p=1"], "unknown setting of --choose: 'lip.p'"),
        (["optim.lr"], "--choose 'optim.lr': expected SETTING=VALUE,VALUE"),
        (["optim.lr="], "expected SETTING=VALUE,VALUE"),
        (["optim.lr=1,,2"], "expected SETTING=VALUE,VALUE"),
        (["optim.lr=1", "optim.lr=2"], "--choose gives optim.lr twice"),
        (["aggregator.lr=0,1"], "aggregator.lr must be above 0, not 0.0"),
        (["aggregator.lr=x"], "--choose aggregator.lr: could not convert"),
        (["kmax.k=(1"], "a bracket or quote is not closed"),
    ],
)
def test_nonsense_is_one_message(run, settings, message):
    with pytest.raises(InputError) as error:
        space(*settings)
    assert message in str(error.value)


def test_a_value_that_train_refuses_ends_with_2(run, capsys):
    for value in ("-1", "x"):
        with pytest.raises(SystemExit) as ended:
            space(f"optim.lr=1e-3,{value}")
        assert ended.value.code == 2
        assert "optim.lr" in capsys.readouterr().err


def test_aggregators_that_become_one_are_refused(run):
    with pytest.raises(InputError, match=r"kmax\(k=1\) and kmax\(k=5\) differ only .* name kmax once"):
        space("kmax.k=1,2", aggregators=("kmax(k=1)", "kmax(k=5)"))
    assert space(LR, aggregators=("kmax(k=1)", "kmax(k=5)")).own == {}


def test_the_first_point_is_nearest_to_the_run_and_every_point_comes_once(run):
    run = replace(run, optim=replace(run.optim, lr=2.5e-3, weight_decay=0.1))
    found = tried(space(LR, DECAY, FACTOR, "kmax.k=1,2,4"), run, "kmax(k=5)")
    first = {"aggregator.lr": 1.0, "optim.lr": 0.002, "optim.weight_decay": 0.1, "kmax.k": 4}
    assert found[0] == first
    assert len(found) == len({tuple(point.items()) for point in found}) == 3 * 2 * 2 * 3


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("aggregator", "weights", "budget"),
    [("gpo", True, 6), ("gpo", True, 8), ("gpo", True, 17), ("mean", False, 5), ("kmax(k=1)", True, 6)],
)
def test_a_budget_is_a_latin_hypercube_of_an_aggregators_own_space(run, seed, aggregator, weights, budget):
    """Of the first points of one order for all, a rate could come once, and never with another one's values."""
    of = space("optim.lr=1e-3,2e-3,4e-3", DECAY, "aggregator.lr=0.1,0.3,1", "kmax.k=1,2,5")
    found = tried(of, run, aggregator, weights=weights, budget=budget, seed=seed)
    assert len({tuple(point.items()) for point in found}) == len(found) == budget
    assert found[0] == tried(of, run, aggregator, weights=weights, budget=1)[0], "the nearest to the run"
    for name, values in of.options(replace(run, aggregator=aggregator), weights=weights).items():
        counts = [sum(point[name] == value for point in found) for value in values]
        assert max(counts) - min(counts) <= 1, f"{name}: {counts}"


def test_samples_are_those_of_their_seed_and_equal_spaces_have_the_same(run):
    of = space(LR, DECAY, FACTOR, "kmax.k=1,2,4")
    assert tried(of, run, "gpo", budget=4) == tried(of, run, "lip", budget=4)
    samples = [tried(of, run, "gpo", budget=4, seed=seed) for seed in range(6)]
    assert len({str(sample) for sample in samples}) > 3
    assert "aggregator.lr" not in tried(of, run, "mean", weights=False)[0]
    huge = space(*(f"optim.{name}={','.join(map(str, range(1, 70)))}" for name in ("lr", "clip", "batch")))
    assert len(tried(huge, run, "gpo", budget=69)) == 69


@pytest.mark.parametrize(
    ("values", "to", "nearest"),
    [
        ((0.001, 0.004), 0.0021, 0.004),  # in ratio; the difference is smaller to 0.001
        ((0.0, 1.0), 0.4, 0.0),
        ((1.0, 2.0), 2, 2.0),
        (("lion", "adamw"), "adamw", "adamw"),
        (("lion", "adamw"), "sgd", "lion"),
        ((1, 2), None, 1),
    ],
)
def test_the_nearest_value(values, to, nearest):
    assert _nearest(values, to) == nearest


def test_a_point_changes_what_it_names(run):
    of = space(LR, "optim.schedule=cosine", FACTOR, "kmax.k=1,2", text_aggregators=("kmax(k=7)", "mean"))
    point = (("aggregator.lr", 0.1), ("optim.lr", 0.004), ("optim.schedule", "cosine"), ("kmax.k", 2))
    before = replace(run, aggregator="gpo", text_aggregator="kmax(k=7)")
    after = of.at(before, point, prefixes=("visual.aggregator",))
    optim = replace(run.optim, lr=0.004, schedule="cosine", lr_factors=(("visual.aggregator", 0.1),))
    assert after == replace(before, optim=optim, text_aggregator="kmax(k=2)")
    alone = replace(before, aggregator="kmax(k=7)")
    assert space("kmax.k=1,2").at(alone, (("kmax.k", 2),), prefixes=()).text_aggregator == "kmax(k=7)"


@pytest.mark.parametrize(
    ("factors", "by", "expected"),
    [
        ((), 1.0, {}),
        ((), 0.5, {"v.a": 0.5, "t.a": 0.5}),
        ((("v", 0.1), ("t.b", 3.0)), 0.5, {"v": 0.1, "t.b": 3.0, "v.a": 0.05, "t.a": 0.5}),
        ((("v.a.gru", 4.0), ("v.a", 0.0)), 0.5, {"v.a.gru": 2.0, "v.a": 0.0, "t.a": 0.5}),
    ],
)
def test_factors_are_multiplied_under_the_aggregators(factors, by, expected):
    assert dict(scaled(factors, ("v.a", "t.a"), by)) == pytest.approx(expected)
    assert scaled(factors, (), by) == factors
