from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from benchmarks.coverage import Shape, findings, near_best
from polypool.pipelines.comparison.statistics import (
    Joint,
    Sample,
    difference,
    joint,
    mean_of,
    rank_intervals,
    score,
    with_baseline,
    with_best,
)


def scores(values, *, seeds=0.0, units=1.0, shared=0.0, df=math.inf) -> Joint:
    """Return scores with given variances; `shared` is the covariance of all rows over units."""
    rows = len(values)
    return Joint(
        labels=tuple("abcdefghij"[:rows]),
        value_R=np.array(values, float),
        seeds_R=np.full(rows, seeds),
        df_R=np.full(rows, 1e6 if df == math.inf else df),
        over_seeds=True,
        units_RR=units * np.eye(rows) + shared,
        units_df=100_000,
    )


def rows_of(y_RSn: np.ndarray) -> dict[str, Sample]:
    seeds = tuple(map(str, range(y_RSn.shape[1])))
    return {str(row): Sample(seeds=seeds, y_Sn=y_Sn) for row, y_Sn in enumerate(y_RSn)}


def test_joint_variances_match_pairwise_estimates():
    rng = np.random.default_rng(0)
    y_RSn = rng.normal(size=(3, 4, 50)) + rng.normal(size=(3, 4, 1)) + 3 * rng.normal(size=(3, 1, 50))
    y_RSn += rng.normal(size=(1, 4, 50))  # residuals of each seed, shared by all rows
    samples = rows_of(y_RSn)
    found = joint(samples)
    np.testing.assert_allclose(found.value_R, y_RSn.mean(axis=(1, 2)))
    for one, other in itertools.combinations("012", 2):
        alone = difference(samples[one], samples[other])
        assert found.queries_RR[int(one), int(other)] == pytest.approx(alone.queries.value)
    np.testing.assert_allclose(found.seeds_R, y_RSn.mean(axis=2).var(axis=1, ddof=1) / 4)
    np.testing.assert_allclose(found.df_R, 3)
    part = found.select(["2", "0"])
    assert part.labels == ("2", "0")
    assert part.units_RR[0, 1] == found.units_RR[2, 0]
    np.testing.assert_allclose(part.deviation_RR[0, 1], found.deviation_RR[2, 0])


def test_shared_residuals_keep_unit_covariance_psd():
    """Assuming independent residuals made query variances of similar rows 0, here of the first and last."""
    rng = np.random.default_rng(1)
    hard_n, shared_Sn = 2 * rng.normal(size=200), rng.normal(size=(4, 200))
    y_RSn = hard_n + shared_Sn + 0.3 * rng.normal(size=(8, 4, 200)) + 0.2 * rng.normal(size=(8, 1, 200))
    found = joint(rows_of(y_RSn))
    assert np.linalg.eigvalsh(found.units_RR)[0] >= -1e-12
    np.testing.assert_allclose(found.queries_RR[np.triu_indices(8, 1)], 2 * 0.2**2 / 200, rtol=0.5)


def test_confidence_set_ignores_variance_of_far_row():
    rng = np.random.default_rng(3)
    y_RSn = 3 * rng.normal(size=60) + rng.normal(size=(3, 4, 60)) + 0.5 * rng.normal(size=(3, 4, 1))
    y_RSn += np.array([0.0, -2.5, -2.0])[:, None, None]
    far_Sn = 30 * np.array([[-1.0], [1.0], [-1.2], [0.8]]) - 200 + y_RSn[0]
    few, more = (with_best(joint(rows_of(of))) for of in (y_RSn, np.concatenate([y_RSn, far_Sn[None]])))
    assert [of.found for of in few.values()] == [False, True, True]
    assert [more[label].found for label in "0123"] == [False, True, True, True]


def test_draws_reproduce_covariance_and_seed_variances():
    found = scores([0, 0, 0], seeds=2.0, units=1.0, shared=3.0, df=8)
    drawn = found.draw(200_000)
    np.testing.assert_allclose(np.cov(drawn.error_RB), np.eye(3) * (2 + 1) + 3, rtol=0.03, atol=0.05)
    np.testing.assert_allclose(drawn.seeds_RB.mean(axis=1), 2.0, rtol=0.02)
    np.testing.assert_allclose(drawn.seeds_RB.var(axis=1), 2 * 2.0**2 / 8, rtol=0.05)
    of_first_RB = found.studentised(drawn, 0)
    assert np.abs(of_first_RB[0]).max() == 0
    # two equal seed variances with 8 degrees of freedom each, and a known unit variance
    variance_B = drawn.seeds_RB[0] + drawn.seeds_RB[1] + 2.0
    expected_B = (drawn.error_RB[1] - drawn.error_RB[0]) / np.sqrt(variance_B)
    np.testing.assert_allclose(of_first_RB[1], expected_B, rtol=0.02)


def test_best_is_one_sided_and_baseline_two_sided():
    few = with_best(scores([0.0, -3.0], seeds=0.5, units=0.0, df=4), draws=200_000)["b"].p
    assert few == pytest.approx(stats.t.sf(3.0, 8), rel=0.1), "p-value must be close to that of Welch's test"
    found = scores([0.0, -2.0])
    best, against = with_best(found, draws=200_000), with_baseline(found, "b", draws=200_000)
    p = stats.norm.sf(2 / math.sqrt(2))
    assert best["b"].p == pytest.approx(p, rel=0.05)
    assert best["a"].p == pytest.approx(1 - p, rel=0.01)
    assert against["a"].p == pytest.approx(2 * p, rel=0.05)
    reach = stats.norm.ppf(0.975) * math.sqrt(2)
    assert (against["a"].low, against["a"].high) == pytest.approx((2 - reach, 2 + reach), abs=0.03)
    reach = stats.norm.ppf(0.95) * math.sqrt(2)
    assert (best["a"].value, best["a"].low, best["a"].high) == pytest.approx(
        (2, 2 - reach, 2 + reach), abs=0.03
    )
    assert (best["b"].low, best["b"].high) == pytest.approx((-2 - reach, -2 + reach), abs=0.03)


def test_many_rows_use_dunnett_quantiles():
    # Dunnett 1955, infinite degrees of freedom: 2.16 for four one-sided comparisons, 2.35 for three two-sided
    far = 2.16 * math.sqrt(2)
    for nearer, stays in ((0.03, True), (-0.03, False)):
        best = with_best(scores([0, 0, 0, 0, -far + nearer * 2]), draws=100_000)
        assert ("e" in [label for label, of in best.items() if not of.found]) is stays
    against = with_baseline(scores([0, 0, 0, 0]), "a", draws=100_000)
    assert against["b"].high / math.sqrt(2) == pytest.approx(2.35, abs=0.03)


def test_excluded_row_interval_ends_at_0_for_either_sign():
    values = [0.0, -1.0, -9.0]
    best = with_best(scores(values))
    assert [of.found for of in best.values()] == [False, False, True]
    assert best["c"].high == 0.0
    assert best["c"].low < -9
    turned = with_best(scores([-value for value in values]), sign=-1)
    for label, of in best.items():
        assert (turned[label].value, turned[label].p) == (-of.value, of.p)
        assert (turned[label].low, turned[label].high) == (-of.high, -of.low)
    alone = with_best(scores([0.0, -20.0, -30.0]))["a"]
    assert (alone.value, alone.low) == (20.0, 0.0)


def test_zero_variance_scores_are_equal_or_differ_for_sure():
    same = with_best(scores([1.0, 1.0, 0.0], units=0.0))
    assert [of.found for of in same.values()] == [False, False, True]
    assert (same["a"].p, same["a"].low, same["a"].high) == (1.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("shape", "tables"),
    [
        (Shape(spacing="all equal", rows=6, units=40), 150),
        (Shape(spacing="all equal", rows=3, units=40, steady=True, best_varies=3.0), 150),
        (Shape(spacing="spread", rows=10, seeds=5, units=40, shared=0.8), 100),
        (Shape(spacing="all equal", rows=6, units=40, single=0.2), 150),
        (Shape(spacing="a few best", rows=6, units=40, seeds=5, mixed=True), 150),
    ],
)
def test_sets_differences_and_ranks_have_nominal_coverage(shape, tables):
    rng = np.random.default_rng(0)
    drawn = [findings(shape, rng) for _ in range(tables)]
    share = {name: np.mean([of[name] for of in drawn]) for name in drawn[0]}
    for name in ("best in the set", "all lags", "all differences", "all ranks"):
        assert share[name] >= 0.95 - 2 * math.sqrt(0.05 * 0.95 / tables), name
    if shape.spacing == "all equal":
        assert share["rows in the set"] >= 0.93 * shape.rows
    else:
        assert share["rows in the set"] < shape.rows - 1
        assert share["width of a rank"] < shape.rows - 1.2
        assert share["found"] > 0.1


def test_mean_over_tasks_adds_variances():
    one, other = scores([1.0, 2.0], seeds=2.0, df=4), scores([3.0, 0.0], seeds=2.0, shared=1.0, df=4)
    mean = mean_of([one, other.scaled(2.0, plus=1.0)])
    np.testing.assert_allclose(mean.value_R, [4.0, 1.5])
    np.testing.assert_allclose(mean.seeds_R, [2.5, 2.5])
    np.testing.assert_allclose(mean.df_R, 2.5**2 / ((0.5**2 + 2**2) / 4))
    np.testing.assert_allclose(mean.units_RR, [[2.25, 1], [1, 2.25]])


def test_rank_intervals_match_csranks_example():
    """`csranks(seq(1, 3, length = 10), 0.2)` in danielwilhelm/R-CS-ranks, docs/reference/csranks.html."""
    found = rank_intervals(scores(np.linspace(1, 3, 10), units=0.2**2), draws=100_000)
    assert [low for low, _ in found.values()] == [7, 6, 5, 4, 3, 2, 1, 1, 1, 1]
    assert [high for _, high in found.values()] == [10, 10, 10, 10, 9, 8, 7, 6, 5, 4]


def test_rank_intervals_step_down_after_rejections():
    """The critical value is first 2.57 (Tukey, four rows), then 2.4 once pairs with far rows are rejected."""
    between = 2.47 * math.sqrt(2)
    assert rank_intervals(scores([0.0, between, 60.0, 120.0])) == {
        "a": (4, 4),
        "b": (3, 3),
        "c": (2, 2),
        "d": (1, 1),
    }
    near = [0.0, between, between - 0.1, 0.1]
    assert rank_intervals(scores(near)) == dict.fromkeys("abcd", (1, 4)), "no pair may be rejected"
    assert rank_intervals(scores([1.0, 1.0], units=0.0)) == {"a": (1, 2), "b": (1, 2)}


def test_score_interval_stays_below_best_possible_score():
    (sample,) = rows_of(np.ones((1, 3, 100)) * [[96.0], [99.0], [100.0]]).values()
    estimate = score(sample)
    half, far = estimate.half_width(), 100 - estimate.value
    low, high = estimate.interval(best=100.0)
    assert estimate.interval()[1] > 100 > high > estimate.value > low
    for end in (low, high):  # (x - d)^2 = half^2 d / x; x, d: score's and end's distance from best
        assert (far - (100 - end)) ** 2 == pytest.approx(half**2 * (100 - end) / far)
    mirrored = score(replace(sample, y_Sn=100 - sample.y_Sn)).interval(best=0.0)
    assert mirrored == pytest.approx((100 - high, 100 - low))
    assert estimate.interval(best=1e6) == pytest.approx(estimate.interval(), abs=0.01)
    assert score(rows_of(np.full((1, 2, 20), 100.0))["0"]).interval(best=100.0) == (100.0, 100.0)
    rng = np.random.default_rng(0)
    held = [near_best(rng, right=0.983, seeds=3, units=240) for _ in range(300)]
    assert np.mean([of["ended"] for of in held]) >= 0.93
    assert np.mean([of["beyond 100"] for of in held]) > 0.1
