"""Plans of sweeps, without Ray: trials, earlier runs, time estimates, job commands, search spaces."""

import os
import shlex
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
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
from polypool.pipelines.recipes.arguments import read_run
from polypool.pipelines.training import sweep
from polypool.pipelines.training.record import run_folder, tags, take_run
from polypool.pipelines.training.sweep import (
    STOPPED,
    SWEEP,
    Space,
    _nearest,
    _resources,
    carry_out,
    make_plan,
    matched,
    only_sweep,
    read_space,
    records_of,
    scaled,
    seconds,
    total,
    trials_per_gpu,
)
from polypool.tasks.run import Run, to_json


def record(run: Run, *, status: str = "FINISHED", took: float = 100.0, trained: float = 80.0) -> RunRecord:
    of = {"tags": tags(run), "params": {"optim.epochs": str(run.optim.epochs)}}
    of |= {"metrics": {"time/train_seconds": trained}, "started": 1000.0, "ended": 1000.0 + took}
    return RunRecord(run_id="id", name="", status=status, **of)


def test_grid_deduplicates_combinations(run, monkeypatch):
    plan = make_plan(["tiny", "tiny"], ["mean", "kmax( k=2 )", "kmax(k=2)"], seeds=2, experiment="e")
    names = [trial.name for trial in plan.trials]
    assert names == [f"tiny {a} seed {seed}" for a in ("mean", "kmax(k=2)") for seed in (0, 1)]
    assert plan.trials[3].run == replace(run, aggregator="kmax(k=2)", seed=1, experiment="e")
    assert plan.metrics["tiny"].name == "rsum"
    pairs = make_plan(["tiny"], ["mean", "max"], text_aggregators=["mean", "max"]).trials
    expected = [("mean", ""), ("mean", "max"), ("max", "mean"), ("max", "")]
    assert [(trial.run.aggregator, trial.run.text_aggregator) for trial in pairs] == expected
    monkeypatch.setitem(RECIPES._parts, "tiny", lambda: replace(run, text_aggregator="max"))
    (trial,) = make_plan(["tiny"], ["gpo"]).trials
    assert trial.run == parse(["tiny", "--aggregator", "gpo"]), "the recipe's text aggregator must be kept"


def test_plan_reports_all_errors_at_once(run):
    with pytest.raises(InputError) as error:
        make_plan(["tiny", "tinny"], ["mean", "maen", "kmax(n=3)", "kmax(k"])
    for part in (
        "unknown recipe 'tinny'. Did you mean 'tiny'?",
        "unknown aggregator 'maen'. Did you mean",
        "parameter of aggregator 'kmax': 'n'",
        "cannot read the spec 'kmax(k'",
    ):
        assert part in str(error.value)
    with pytest.raises(InputError, match=r"--recipes names nothing.*\n.*--aggregators names nothing"):
        make_plan([], [])
    with pytest.raises(InputError, match="is an ensemble"):
        make_plan([next(n for n, r in RECIPES.usable() if not isinstance(r(), Run))], ["mean"])
    with pytest.raises(InputError, match="--early-stop needs at least 2 epochs, and tiny has fewer"):
        make_plan(["tiny"], ["mean"], flags=["--optim.epochs", "1"], early_stop=True)
    for flags, option in (
        (["--seed", "3"], "--seeds"),
        (["--cpus", "1", "--aggregator=gpo"], "--aggregators"),
        (["--text_aggregator", "gpo"], "--text-aggregators"),
    ):
        with pytest.raises(InputError, match=f"a sweep decides that itself; use {option}$"):
            make_plan(["tiny"], ["mean"], flags=flags)


def test_time_estimate_uses_runs_of_aggregator_or_recipe(run):
    gpo = replace(run, aggregator="gpo")
    records = [record(run, took=50, trained=40), record(gpo), record(gpo, took=120), record(gpo, took=9000)]
    assert seconds(run, records) == 50
    assert seconds(gpo, records) == 120, "expected the median, without outliers"
    assert seconds(replace(run, aggregator="max"), records) == 110
    twice = replace(run, optim=replace(run.optim, epochs=2 * run.optim.epochs))
    assert seconds(twice, records) == 90, "only training time must scale with epochs"
    assert seconds(replace(run, recipe="other"), records) is None
    assert seconds(replace(run, data=replace(run.data, dataset="other")), records) is None
    assert seconds(run, [record(run, status="FAILED")]) is None
    assert total([60.0, 60.0, 30.0], 2) == 75
    assert total([100.0, 10.0], 4) == 100
    assert (total([1.0, None], 1), total([], 2)) == (None, 0.0)
    assert [duration(t) for t in (None, 4.4, 61, 3720)] == ["unknown", "4 s", "1 min 01 s", "1 h 02 min"]


def test_dry_run_lists_grid_and_equivalent_commands(run):
    flags = ["--optim.epochs", "2", "--optim.no-drop-last", "--optim.milestones", "3", "5"]
    flags += ["--data.visual-augment", ""]
    plan = make_plan(
        ["tiny"], ["mean", "kmax(k=2)"], text_aggregators=["mean"], experiment="my own", flags=flags
    )
    optim = plan.trials[0].run.optim
    assert (optim.epochs, optim.drop_last, optim.milestones) == (2, False, (3.0, 5.0))
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
    assert [parse(words[len(head) :]) for words in jobs] == [trial.run for trial in plan.trials]
    assert "time unknown" in plan.text([], concurrent=1, words=[])


def test_recipe_files_are_planned_by_their_path(run, tmp_path):
    one, two = files = [str(tmp_path / name) for name in ("a.yaml", "b.yaml")]
    for number, file in enumerate(files, start=1):
        Path(file).write_text(f"base: tiny\noptim: {{epochs: {number}}}\n")
    (job,) = [
        line for line in make_plan([two], ["mean"]).text([], words=()).splitlines() if " train " in line
    ]
    assert f" train {two} " in job
    with pytest.raises(InputError, match=r"a\.yaml .*b\.yaml: several change one recipe"):
        make_plan([one, two], ["mean"])


def test_own_data_are_planned_as_jobs(made):
    data = ["--corpus", made.data.corpus, "--features", made.data.features]
    (job,) = make_plan(["image_text"], ["mean"], flags=data).text([], words=()).splitlines()[-1:]
    assert job.endswith(
        shlex.join([*data, "--aggregator", "mean", "--seed", "0", "--experiment", "polypool"])
    )


@pytest.mark.parametrize(
    ("gpus", "concurrent", "most", "share"),
    [(1, 0, 1, 1.0), (1, 7, 7, 0.1428), (2, 3, 3, 0.5), (4, 2, 2, 1.0), (0, 5, 5, None), (0, 12, 8, None)],
)
def test_surplus_trials_share_gpus(run, monkeypatch, gpus, concurrent, most, share):
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 8.0, "GPU": float(gpus)})
    trials = make_plan(["tiny"], ["mean"], flags=["--cpus", "1"]).trials
    at_once, reserved = _resources(trials, concurrent=concurrent)
    assert (at_once, reserved["CPU"], reserved.get("GPU")) == (most, 1, share)


@pytest.mark.parametrize(
    ("memory", "load", "expected"),
    [(0.2, 0.1, 4), (0.1, 0.25, 4), (0.45, 0.1, 2), (0.46, 0.1, 1), (0.05, 0.34, 2), (0.95, 1.1, 1)],
)
def test_trials_per_gpu_depend_on_memory_and_load(memory, load, expected):
    assert trials_per_gpu(memory=memory, load=load) == expected


ALL = ["max", "gpo", "lip", "mean", "last"]


@pytest.mark.parametrize(
    ("gpus", "loads", "options", "waves"),
    [
        (2, (0.3, 0.4), {}, [(["max", "lip"], 2, 1.0), (["gpo", "mean", "last"], 4, 0.5)]),
        (1, (0.05, 0.1), {}, [(["max", "lip"], 1, 1.0), (["gpo", "mean", "last"], 8, 0.125)]),
        (3, (0.3, 0.5), {}, [(["max", "lip", "gpo"], 3, 1.0), (["mean", "last"], 6, 0.5)]),
        (2, (), {}, [(["max", "lip"], 2, 1.0), (["gpo", "mean", "last"], 2, 1.0)]),
        (2, (0.1, 0.1), {"early_stop": True}, [(["max", "gpo", "mean", "last"], 2, 1.0), (["lip"], 2, 1.0)]),
        (2, (0.1, 0.1), {"concurrent": 6}, [(ALL, 6, 0.3333)]),
        (0, (0.1, 0.1), {}, [(ALL, 8, None)]),
    ],
)
def test_first_trials_determine_trials_per_gpu(run, monkeypatch, gpus, loads, options, waves):
    """Trials of `tiny`, but `lip` of another recipe; `loads` are measured for the first two trials."""
    found, records = [], []

    def train(plan, trials, side_by_side, **_):
        given, names = side_by_side.keywords, [trial.run.aggregator for trial in trials]
        found.append((names, given["concurrent"], given["resources"].get("GPU")))
        for trial, load in zip(trials, loads, strict=False):
            metrics = {"gpu/load": load, "gpu/memory": 0.01}
            records.append(replace(record(trial.run), run_id=trial.run.aggregator, metrics=metrics))
        return [replace(trial, state="trained", run_id=trial.run.aggregator) for trial in trials]

    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 8.0, "GPU": float(gpus)})
    monkeypatch.setattr(sweep, "ray_session", lambda **_: nullcontext())
    monkeypatch.setattr(sweep, "records_of", lambda _: records)
    monkeypatch.setattr(sweep, "_train", train)
    plan = make_plan(["tiny"], ALL, flags=["--cpus", "1"], early_stop=options.pop("early_stop", False))
    trials = [
        replace(trial, run=replace(trial.run, recipe="other")) if trial.run.aggregator == "lip" else trial
        for trial in plan.trials
    ]
    assert len(carry_out(replace(plan, trials=tuple(trials)), **options)) == 5
    assert found == waves


def test_concurrent_sweep_of_same_experiment_is_refused(new_home):
    def second() -> str:
        with pytest.raises(InputError) as refused, only_sweep("a b"):
            pass
        return str(refused.value)

    with only_sweep("a b"), only_sweep("other"), ThreadPoolExecutor(1) as thread:
        said = thread.submit(second).result()
        assert said.startswith(f"experiment 'a b': another sweep of it is running (process {os.getpid()} on ")
    with ThreadPoolExecutor(1) as thread, only_sweep("a b"):
        pass


def record_run(run: Run, status: str = "FINISHED", *, settings: Any = None, **more: str) -> str:
    """Record a run that was never trained; return its id."""
    home = paths.home()
    place = {"uri": tracking_uri(home), "home": home}
    tracker = Tracker.start(run.experiment, **place, name="made", tags=tags(run) | more, params=to_json(run))
    tracker.json("run.json", settings or to_json(run))
    if status != "RUNNING":
        tracker.finish(status)
    return tracker.run_id


def test_trials_match_earlier_runs_by_tags_and_settings(run, tmp_path):
    assert records_of("polypool") == [], "there must be no records without a store"
    plan = make_plan(["tiny"], ["mean", "max", "gpo", "kmax(k=2)", "lip"], seeds=2)
    runs = [trial.run for trial in plan.trials]
    done = record_run(replace(runs[0], cpus=7, log_every=3, text_aggregator="mean"))
    record_run(replace(runs[1], optim=replace(runs[1].optim, epochs=99)))
    failed = record_run(runs[2], "FAILED", **{SWEEP: "s"})
    record_run(runs[3], "RUNNING")
    killed = record_run(runs[4], "RUNNING", **{SWEEP: "s"})
    stopped = record_run(runs[5], "KILLED", **{SWEEP: "s", STOPPED: "after epoch 2 of 6"})
    bare = record_run(runs[6])
    (tmp_path / "mlartifacts" / bare / "artifacts" / "run.json").unlink()
    record_run(runs[7], settings={"colour": "blue"})
    plan = matched(plan, records_of("polypool"))
    found = plan.trials
    states = ["finished", *["new"] * 3, "unfinished", "stopped", *["new"] * 4]
    assert [each.state for each in found] == states
    assert [found[n].run_id for n in (0, 4, 5)] == [done, killed, stopped]
    assert found[5].detail == "after epoch 2 of 6"
    assert found[2].note == f"run {failed} failed"
    lost = f"run {bare} may be it, but its settings cannot be used: run {bare} has no artifact run.json"
    assert found[6].note.startswith(lost)
    assert "its settings cannot be used: run.json: unknown field 'colour'" in found[7].note
    assert found[8].note == ""
    assert plan.summary() == (
        "10 trials, 1 of them finished before and skipped; 1 interrupted before, to resume from the last checkpoint; "
        "1 stopped early before, to resume, since --early-stop is not given; 9 to train"
    )
    assert len(replace(plan, early_stop=True).to_do) == 8
    lines = plan.text([], concurrent=1, words=()).splitlines()
    assert lines[4].endswith(f"  tiny max seed 0        new, time unknown; run {failed} failed")


def test_running_trial_is_skipped_and_dead_trial_resumed(run, tmp_path):
    plan = make_plan(["tiny"], ["mean", "max", "gpo"])
    alive, dead, elsewhere = (record_run(trial.run, "RUNNING") for trial in plan.trials)
    tracker = Tracker.attach(tracking_uri(tmp_path), record_run(plan.trials[1].run, "RUNNING"))
    tracker.tags({SWEEP: "sweep-1 3"})  # its folder is on another machine
    tracker.log({"epoch": 1}, step=1)
    run_folder(tmp_path, dead).mkdir(parents=True)
    with ThreadPoolExecutor(1) as somebody:
        lease = somebody.submit(take_run, Tracker.attach(tracking_uri(tmp_path), alive)).result()
        plan = matched(plan, records_of("polypool"))
        somebody.submit(lease.release).result()
    found = plan.trials
    expected = [("running", alive), ("unfinished", dead), ("new", "")]
    assert [(each.state, each.run_id) for each in found] == expected
    assert found[0].note == f"process {os.getpid()} on {socket.gethostname()} is training it"
    assert found[2].note == f"run {elsewhere} may be it, trained on another machine: its folder is not here"
    assert [trial.run_id for trial in plan.to_do] == [dead, ""]
    assert "3 trials; 1 running in another process; 1 interrupted" in plan.summary()
    assert matched(plan, records_of("polypool")).trials[0].state == "unfinished", (
        "an unlocked run must be resumable"
    )


LR, DECAY, FACTOR = ("optim.lr=1e-3,2e-3,4e-3", "optim.weight-decay=0.01, 0.1", "aggregator.lr=0.1,1")


def space(*settings: str, aggregators=("mean", "gpo", "kmax(k=5)"), **more) -> Space:
    return read_space(settings, aggregators=aggregators, read=lambda flags: read_run("tiny", flags), **more)


def tried(
    of: Space, run: Run, aggregator: str, *, weights: bool = True, budget: int = 1000, seed: int = 0
) -> list[dict[str, object]]:
    points = of.points(replace(run, aggregator=aggregator), weights=weights, budget=budget, seed=seed)
    return [*map(dict, points)]


def test_search_space_values_are_parsed_like_train_flags(run):
    found = space(LR, "optim.optimiser=lion,adamw(amsgrad=True, betas=(0.9, 0.95))", FACTOR, "kmax.k=1,2,1")
    optimisers = ("lion", "adamw(amsgrad=True, betas=(0.9, 0.95))")
    shared = {"aggregator.lr": (0.1, 1.0), "optim.lr": (0.001, 0.002, 0.004), "optim.optimiser": optimisers}
    assert found.shared == shared
    assert [*found.shared] == sorted(found.shared)
    assert found.own == {"kmax.k": (1, 2)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["optim.lrr=1"], "unknown setting of --choose: 'optim.lrr'. Did you mean 'optim.lr'?"),
        (["kmax.n=1"], "unknown setting of --choose: 'kmax.n'. Did you mean 'kmax.k'?"),
        (["lip.p=1"], "unknown setting of --choose: 'lip.p'"),
        (["optim.lr"], "--choose 'optim.lr': expected SETTING=VALUE,VALUE"),
        (["optim.lr=1,,2"], "expected SETTING=VALUE,VALUE"),
        (["optim.lr=1", "optim.lr=2"], "--choose gives optim.lr twice"),
        (["aggregator.lr=0,1"], "aggregator.lr must be above 0, not 0.0"),
        (["aggregator.lr=x"], "--choose aggregator.lr: could not convert"),
        (["kmax.k=(1"], "a bracket or quote is not closed"),
    ],
)
def test_invalid_choose_setting_is_refused(run, settings, message):
    with pytest.raises(InputError) as error:
        space(*settings)
    assert message in str(error.value)


def test_value_refused_by_train_exits_2(run, capsys):
    with pytest.raises(SystemExit) as ended:
        space("optim.lr=1e-3,-1")
    assert ended.value.code == 2
    assert "optim.lr" in capsys.readouterr().err


def test_aggregators_equal_after_tuning_are_refused(run):
    with pytest.raises(InputError, match=r"kmax\(k=1\) and kmax\(k=5\) differ only .* name kmax once"):
        space("kmax.k=1,2", aggregators=("kmax(k=1)", "kmax(k=5)"))


GRID = Space(
    shared={
        "aggregator.lr": (0.1, 0.3, 1.0),
        "optim.lr": (1e-3, 2e-3, 4e-3),
        "optim.weight_decay": (0.01, 0.1),
    },
    own={"kmax.k": (1, 2, 5)},
)


def test_points_are_unique_and_start_nearest_to_run(run):
    run = replace(run, optim=replace(run.optim, lr=2.5e-3, weight_decay=0.1))
    found = tried(GRID, run, "kmax(k=4)")
    first = {"aggregator.lr": 1.0, "optim.lr": 0.002, "optim.weight_decay": 0.1, "kmax.k": 5}
    assert found[0] == first
    assert len(found) == len({tuple(point.items()) for point in found}) == 3 * 3 * 2 * 3


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("aggregator", "weights", "budget"),
    [("gpo", True, 6), ("gpo", True, 8), ("gpo", True, 17), ("mean", False, 5), ("kmax(k=1)", True, 6)],
)
def test_sampled_points_form_latin_hypercube(run, seed, aggregator, weights, budget):
    """Taking the first points of a fixed order instead could sample a learning rate only once."""
    found = tried(GRID, run, aggregator, weights=weights, budget=budget, seed=seed)
    assert len({tuple(point.items()) for point in found}) == len(found) == budget
    assert found[0] == tried(GRID, run, aggregator, weights=weights, budget=1)[0], (
        "the first point must be nearest to the run"
    )
    for name, values in GRID.options(replace(run, aggregator=aggregator), weights=weights).items():
        counts = [sum(point[name] == value for point in found) for value in values]
        assert max(counts) - min(counts) <= 1, f"{name}: {counts}"


def test_samples_depend_only_on_seed_and_space(run):
    assert tried(GRID, run, "gpo", budget=4) == tried(GRID, run, "lip", budget=4)
    samples = [tried(GRID, run, "gpo", budget=4, seed=seed) for seed in range(6)]
    assert len({str(sample) for sample in samples}) > 3
    assert "aggregator.lr" not in tried(GRID, run, "mean", weights=False)[0]
    numbers = tuple(range(1, 70))
    huge = Space(shared={f"optim.{name}": numbers for name in ("lr", "clip", "batch")}, own={})
    assert len(tried(huge, run, "gpo", budget=69)) == 69


@pytest.mark.parametrize(
    ("values", "to", "nearest"),
    [
        ((0.001, 0.004), 0.0021, 0.004),  # by ratio; by difference it would be 0.001
        ((0.0, 1.0), 0.4, 0.0),
        ((1.0, 2.0), 2, 2.0),
        (("lion", "adamw"), "adamw", "adamw"),
        (("lion", "adamw"), "sgd", "lion"),
        ((1, 2), None, 1),
    ],
)
def test_nearest_value_is_selected(values, to, nearest):
    assert _nearest(values, to) == nearest


def test_point_changes_only_named_settings(run):
    of = replace(GRID, sides=("aggregator", "text_aggregator"))
    point = (("aggregator.lr", 0.1), ("optim.lr", 0.004), ("optim.schedule", "cosine"), ("kmax.k", 2))
    before = replace(run, aggregator="gpo", text_aggregator="kmax(k=7)")
    after = of.at(before, point, prefixes=("visual.aggregator",))
    optim = replace(run.optim, lr=0.004, schedule="cosine", lr_factors=(("visual.aggregator", 0.1),))
    assert after == replace(before, optim=optim, text_aggregator="kmax(k=2)")
    alone = replace(before, aggregator="kmax(k=7)")
    assert GRID.at(alone, (("kmax.k", 2),), prefixes=()).text_aggregator == "kmax(k=7)"


@pytest.mark.parametrize(
    ("factors", "by", "expected"),
    [
        ((), 1.0, {}),
        ((), 0.5, {"v.a": 0.5, "t.a": 0.5}),
        ((("v", 0.1), ("t.b", 3.0)), 0.5, {"v": 0.1, "t.b": 3.0, "v.a": 0.05, "t.a": 0.5}),
        ((("v.a.gru", 4.0), ("v.a", 0.0)), 0.5, {"v.a.gru": 2.0, "v.a": 0.0, "t.a": 0.5}),
    ],
)
def test_lr_factors_are_scaled_for_aggregators(factors, by, expected):
    assert dict(scaled(factors, ("v.a", "t.a"), by)) == pytest.approx(expected)
    assert scaled(factors, (), by) == factors
