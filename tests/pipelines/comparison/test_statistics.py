from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from records import blocks_of, run
from scipy import stats

from polypool.infra.errors import InputError
from polypool.infra.text_tables import ABSENT
from polypool.pipelines.comparison.statistics import (
    MOST,
    PAIRED_FROM,
    POWER,
    Difference,
    Estimate,
    Judged,
    Planning,
    Sample,
    Variance,
    holm,
    judge,
    score,
)
from polypool.pipelines.comparison.statistics import difference as of_samples
from polypool.pipelines.comparison.tables import detectable, seeds_needed

TRUE = 1.5


def row(y_Sn: np.ndarray, *, first: int = 0) -> Sample:
    """Return a row of runs with consecutive seeds from `first` on."""
    return Sample(seeds=tuple(map(str, range(first, first + len(y_Sn)))), y_Sn=y_Sn)


def difference(one: np.ndarray, other: np.ndarray, *, apart: bool = False) -> Estimate:
    """Return the difference of two rows with the same first seeds or, if `apart`, disjoint seeds."""
    return of_samples(row(one), row(other, first=100 if apart else 0))


def normal(
    rng: np.random.Generator, seeds, units: int, *, over_seeds, left: float
) -> tuple[np.ndarray, np.ndarray]:
    """Draw two rows with difference TRUE; `over_seeds` are seed variances in multiples of 1 / units."""
    hard_n, better_n = 3 * rng.normal(size=units), TRUE + rng.normal(size=units)
    one, other = (
        np.sqrt(times / units) * rng.normal(size=(count, 1)) + np.sqrt(left) * rng.normal(size=(count, units))
        for count, times in zip(seeds, over_seeds, strict=True)
    )
    return one + hard_n + better_n, other + hard_n


@pytest.mark.parametrize("over_seeds", [(0.0, 0.0), (30.0, 30.0), (30.0, 0.0)])
@pytest.mark.parametrize(("seeds", "most"), [((2, 2), 1.0), ((3, 3), 0.985), ((10, 10), 0.97), ((2, 5), 1.0)])
def test_difference_intervals_have_nominal_coverage(seeds, most, over_seeds):
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(500):
        low, high = difference(*normal(rng, seeds, 15, over_seeds=over_seeds, left=0.5)).interval()
        held += low <= TRUE <= high
    assert 0.92 <= held / 500 <= most + 0.005  # standard error of the coverage: 0.01


@pytest.mark.parametrize(("seeds", "units"), [(1, 40), (3, 40), (5, 200)])
def test_score_intervals_have_nominal_coverage(seeds, units):
    rng, held, over_seeds = np.random.default_rng(2), 0, 0.0 if seeds == 1 else 2.0
    for _ in range(400):
        one, _ = normal(rng, (seeds, 1), units, over_seeds=(over_seeds, 0.0), left=0.5)
        low, high = score(row(one - TRUE)).interval()
        held += low <= 0 <= high
    assert 0.92 <= held / 400 <= 0.985


def test_zero_query_variance_equals_welch_test():
    rng = np.random.default_rng(4)
    for counts in ((2, 3), (4, 4), (9, 3)):
        one, other = rng.normal(0, 1, (counts[0], 1)), rng.normal(2, 3, (counts[1], 1))
        found = difference(one + np.zeros(20), other + np.zeros(20))
        expected = stats.ttest_ind(one[:, 0], other[:, 0], equal_var=False)
        assert (found.p, found.seeds.df) == (pytest.approx(expected.pvalue), pytest.approx(expected.df))
        assert found.interval() == pytest.approx(tuple(expected.confidence_interval()))


def test_single_seed_equals_paired_t_test_over_queries():
    one, other = np.random.default_rng(5).normal(0.2, 1, (2, 1, 50))
    found = difference(one, other)
    expected = stats.ttest_rel(one[0], other[0])
    assert found.seeds is None
    assert found.p == pytest.approx(expected.pvalue)
    assert found.interval() == pytest.approx(tuple(expected.confidence_interval()))


def test_variances_match_loop_reference():
    rng = np.random.default_rng(6)
    hard_n, shared_Sn = 3 * rng.normal(size=25), rng.normal(size=(3, 25))
    one, other = (
        hard_n + rng.normal(size=25) + 0.4 * rng.normal(size=(runs, 1)) + 0.5 * rng.normal(size=(runs, 25))
        for runs in (3, 4)
    )
    one, other = one + shared_Sn, other + np.vstack([0.5 * shared_Sn, np.zeros(25)])

    def left(y_Sn: np.ndarray, z_Sn: np.ndarray) -> float:
        (runs, units), total = y_Sn.shape, 0.0
        for s in range(runs):
            for n in range(units):
                y, z = (of[s, n] - of[s].mean() - of[:, n].mean() + of.mean() for of in (y_Sn, z_Sn))
                total += y * z
        return total / ((runs - 1) * (units - 1))

    found = difference(one, other)
    # the means of 3 and of 4 runs share the residuals of 3 seeds
    less = left(one, one) / 3 + left(other, other) / 4 - 2 * left(one, other[:3]) * 3 / (3 * 4)
    paired_n = [one[:, n].mean() - other[:, n].mean() for n in range(25)]
    assert found.queries.value == pytest.approx(np.var(paired_n, ddof=1) / 25 - less / 25, rel=1e-12)
    apart = np.var(paired_n, ddof=1) - left(one, one) / 3 - left(other, other) / 4
    assert difference(one, other, apart=True).queries.value == pytest.approx(apart / 25, rel=1e-12)
    assert found.queries.df == 24
    assert found.seeds.value == pytest.approx(stats.sem(one.mean(1)) ** 2 + stats.sem(other.mean(1)) ** 2)
    half = math.sqrt(
        stats.t.ppf(0.975, found.seeds.df) ** 2 * found.seeds.value
        + stats.t.ppf(0.975, 24) ** 2 * found.queries.value
    )
    assert found.interval() == pytest.approx((found.value - half, found.value + half))
    assert found.half_width(found.p) == pytest.approx(abs(found.value))
    alone = score(row(one))
    assert alone.queries.value == pytest.approx((np.var(one.mean(0), ddof=1) - left(one, one) / 3) / 25)
    assert (alone.queries.df, alone.seeds.df) == (24, 2)
    assert alone.seeds.value == pytest.approx(stats.sem(one.mean(1)) ** 2)
    assert score(row(np.array([[0.0, 1.0] * 5, [1.0, 0.0] * 5]))).queries.value == 0, "never below 0"


def test_seeds_are_paired_if_shared_and_enough():
    rng = np.random.default_rng(7)
    shared_S1 = 5 * rng.normal(size=(PAIRED_FROM, 1))
    one, other = (shared_S1 + rng.normal(size=(PAIRED_FROM, 30)) for _ in range(2))
    paired, apart = difference(one, other), difference(one, other, apart=True)
    assert paired.seeds.value == pytest.approx(stats.sem((one - other).mean(axis=1)) ** 2)
    assert paired.seeds.df == PAIRED_FROM - 1
    assert apart.half_width() > 5 * paired.half_width()
    few = [y_Sn[: PAIRED_FROM - 1] for y_Sn in (one, other)]
    assert difference(*few).seeds == difference(*few, apart=True).seeds


def test_holm_correction_matches_hand_computation():
    # sorted: 0.005 x 4, 0.01 x 3, 0.03 x 2, 0.04 x 1; the last is raised to the one before it
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.7, 0.2]) == pytest.approx([1.0, 1.0, 0.6])


def rows(values: dict[str, float], *, seeds: int = 3, noise: float = 0.5) -> dict[str, Sample]:
    rng, samples = np.random.default_rng(8), {}
    hard_n = 5 * rng.normal(size=40)
    for label, value in values.items():
        noise_Sn = noise * rng.normal(size=(seeds, 1)) + noise * rng.normal(size=(seeds, 40))
        samples[label] = Sample(seeds=tuple(map(str, range(seeds))), y_Sn=value + hard_n + noise_Sn)
    return samples


def test_all_pairs_share_one_holm_correction():
    samples = rows({"a": 10.0, "b": 7.5, "c": 0.0, "d": 0.1})
    judged = judge(samples, units="40 images", pairs=True)
    assert (judged.labels, len(judged.pairs)) == (("a", "b", "c", "d"), 6)
    alone = {pair: of_samples(*(samples[label] for label in pair)) for pair in judged.pairs}
    corrected = dict(zip(alone, holm([found.p for found in alone.values()]), strict=True))
    assert {pair: found.p for pair, found in judged.pairs.items()} == corrected
    assert any(found.p < 0.05 < judged.pairs[pair].p for pair, found in alone.items()), (
        "one pair must lose significance by the correction"
    )
    assert judged.pairs["a", "d"].significant
    assert judged.pairs["c", "d"].significant is False
    assert judged.intervals["a"] == score(samples["a"]).interval()


def test_single_seed_row_borrows_variance_of_others():
    several = rows({"a": 10.0, "b": 0.0, "d": 4.0})
    mixed = several | {"c": rows({"c": 0.0}, seeds=1)["c"]}
    judged = judge(mixed, units="u", pairs=True)
    assert judged.pairs["a", "c"].significant is True
    own = [of.y_Sn.mean(axis=1).var(ddof=1) for of in several.values()]
    borrowed = Variance(value=np.mean(own), df=2)
    found = of_samples(mixed["a"], mixed["c"], borrowed=borrowed)
    assert found.seeds.value == pytest.approx(own[0] / 3 + np.mean(own))
    assert judged.intervals["c"] == score(mixed["c"], borrowed=borrowed).interval()
    np.testing.assert_allclose(judged.joint.seeds_R, [*(np.array(own) / 3), np.mean(own)])
    assert judged.joint.df_R.tolist() == [2, 2, 2, 2]
    alone = judge({label: mixed[label] for label in ("a", "c")}, units="u").intervals["c"]
    assert alone != judged.intervals["c"]
    planned = judged.planning
    assert (planned.units, planned.runs, planned.others) == (40, 1, 3)
    assert planned.seeds == pytest.approx(np.mean(own))
    between = [judged.joint.queries_RR[pair] for pair in itertools.combinations(range(4), 2)]
    assert planned.queries == pytest.approx(np.mean(between))


def test_equal_scores_do_not_differ_and_few_units_are_refused():
    same, few = ({label: Sample(seeds=("0",), y_Sn=np.ones((1, n))) for label in "ab"} for n in (40, 9))
    none = Difference(value=0.0, low=0.0, high=0.0, p=1.0, over_seeds=False)
    assert judge(same, units="u", pairs=True).pairs == {("a", "b"): none}
    with pytest.raises(InputError, match="9 images are too few"):
        judge(few, units="9 images")


PLAN = Planning(seeds=4.0, queries=1.0, units=60, runs=3, others=44)


@pytest.mark.parametrize(("true", "seeds", "tests"), [(None, 2, 1), (None, 10, 1), (6.0, 4, 10)])
def test_power_matches_simulated_detection_rate(true, seeds, tests):
    rng, found, true = np.random.default_rng(seeds), 0, true or PLAN.smallest(seeds=seeds)
    for _ in range(1000):
        one, other = 2.0 * rng.normal(size=(2, seeds, 1)) + np.zeros(60)
        estimate = difference(one + true + np.sqrt(60) * rng.normal(size=60), other)
        found += abs(estimate.value) > estimate.half_width(0.05 / tests)
    assert PLAN.power(true, seeds=seeds, tests=tests) == pytest.approx(found / 1000, abs=0.04)


def test_detectable_difference_shrinks_with_seeds_to_floor():
    smallest = [PLAN.smallest(seeds=seeds) for seeds in (2, 3, 9, 20, 100, MOST)]
    assert smallest == sorted(smallest, reverse=True)
    assert PLAN.power(smallest[0], seeds=2) == pytest.approx(POWER, abs=1e-4)
    # floor: t quantile with 59 degrees of freedom plus normal quantile
    assert (smallest[-1], PLAN.floor()) == (
        pytest.approx(PLAN.floor(), rel=0.02),
        pytest.approx(2.8426, abs=1e-3),
    )
    assert PLAN.smallest(seeds=5, tests=44) > PLAN.smallest(seeds=5)
    for wished in (3.2, 7.0):
        seeds = PLAN.needed(wished)
        assert PLAN.smallest(seeds=seeds) <= wished < PLAN.smallest(seeds=seeds - 1)
    assert [PLAN.needed(1000.0), PLAN.needed(2.8), PLAN.needed(4.0, tests=44)] == [2, None, None]
    nothing = replace(PLAN, seeds=0.0)
    assert nothing.smallest(seeds=2) == pytest.approx(nothing.floor(), rel=0.02)
    assert replace(nothing, queries=0.0).smallest(seeds=2) == 0


def test_detectable_table_starts_with_current_seed_count():
    (made,) = blocks_of(*(run(name, seed, 50.0 + seed) for name in ("a", "b") for seed in range(3)))

    def shown(plan: Planning | None):
        judged = Judged(units="60 images", labels=("a", "b"), intervals={}, planning=plan)
        return detectable(replace(made, judged=judged))

    by_hand = (f"{PLAN.smallest(seeds=3):.1f}", f"{PLAN.smallest(seeds=3, tests=44):.1f}")
    assert shown(PLAN).rows[0][1:] == by_hand
    huge = shown(replace(PLAN, seeds=1e6, runs=2))
    assert huge.rows[0][1:] == (ABSENT, ABSENT), "differences beyond the range of the metric must be absent"
    assert shown(None) is None


def test_seeds_needed_are_not_asked_of_one_row():
    (made,) = blocks_of(*(run("a", seed, 50.0 + seed) for seed in range(3)))
    assert (
        seeds_needed(replace(made, judged=Judged(units="60 images", labels=("a",), intervals={})), 1.0) == ""
    )
