"""Spaces of tuned sweeps: what is read of the command line, which points are tried, and the runs that they are."""

from dataclasses import replace

import pytest

from polypool.infra.errors import InputError
from polypool.pipelines.recipes.arguments import read_run
from polypool.pipelines.training.sweep import Space, _nearest, read_space, scaled
from polypool.tasks.run import Run

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
