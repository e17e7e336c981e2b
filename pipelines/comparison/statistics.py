"""Statistics of a comparison: confidence intervals, sets of the best rows, tests and power, over seeds and queries.

**Model.** A row's runs, one per seed, answer the same queries, grouped by the unit they belong to, such as an image
with its captions. The contribution of unit n to the score of seed s is `y[s, n]`; the mean over units is the run's
score, the mean over both the row's. Seeds and units are crossed: `y = row + seed + unit + residual`, each drawn anew
with other seeds or other queries. A difference of two rows therefore varies by

- `seeds`: the variance of the runs' scores over their number, for each row, added up; Welch's degrees of freedom
  (Biometrika 34, 1947), which assume neither equal variances nor equal numbers of runs;
- `queries`: the variance over units of the rows' difference, paired unit by unit, less the residual variance, which
  `seeds` already includes. Residuals of rows that share a seed correlate (by 0.2 to 0.3 in our tables), so the variance
  of the difference of their residuals is taken.

A row of one run borrows the variance over seeds of the other rows.

**Intervals** are `value ± sqrt(t_seeds^2 seeds + t_queries^2 queries)`, each variance with the quantile of t for its
own degrees of freedom (Howe, JASA 69, 1974; Graybill and Wang, JASA 75, 1980), so that two seeds widen the seeds' part
and nothing else. The p-value is the level at which the interval just reaches 0.

Chosen by simulation, with independent residuals: 32 cases of 2, 3, 5 and 10 seeds and 40 units, from no variance over
seeds to 100 times that over queries, in one of the rows or in both, 4,000 draws of each. Of its 95 % intervals 93.8 to
98.9 % held the true difference (2 seeds: 93.8 to 98.9; 3: 94.7 to 97.6; 5: 95.3 to 96.8; 10: 94.9 to 96.3); where
residuals of one seed correlate by 0.3 to 0.5, 97.0 to 99.6 %. Percentiles of a bootstrap held it in 26 to 96 % with
seeds averaged first, in 61 to 95 % with seeds drawn and queries anew within each, in 65 to 99 % with seeds and queries
drawn crosswise (Owen, Annals of Applied Statistics 1, 2007): resampling two or three seeds never shows what others do.
Satterthwaite's degrees of freedom for the sum of the variances: 89 to 97 %.

**Joint scores.** Rows answer the same queries, so their scores vary together over units: by the covariance of their
contributions, less the residual covariance of shared seeds. Negative eigenvalues of that estimate, which are noise, are
set to 0. Over seeds each row varies alone, by its own variance, so that no row's test depends on how much another one
varies.

A variance of three runs has two degrees of freedom. `Joint.draw` therefore repeats the whole table: errors of the
scores, and variances as other seeds and queries would estimate them, in which these errors are then measured
(`studentised`). Shares of such repetitions are p-values: a parametric bootstrap of the studentised maximum (Beran, JASA
83, 1988). Simulations: docs/statistics.md. By these, quantiles of errors in t with the variance of each row held fixed
(Behrens-Fisher) never err and exclude hardly a row of three seeds; variances shrunk towards their mean make larger sets
than the rows' own variances.

**The best and a baseline.** Differences are taken in their standard deviations. A row leaves the confidence set where
its largest lag behind another row exceeds 95 % of repetitions in which all rows are equally good. The best row is then
in the set with a probability of at least 95 %. The number of rows in the set needs no correction, as only the test of
the one row that is the best can err. The intervals of the differences from the best of the others end at 0 for rows
outside the set. Against a baseline, the largest difference of either sign counts. Sources: Hsu, "Constrained
simultaneous confidence intervals for multiple comparisons with the best", Annals of Statistics 12, 1984; Dunnett, "A
multiple comparison procedure for comparing several treatments with a control", JASA 50, 1955.

**Pairs** are tested only on request, and corrected for their number (Holm, "A simple sequentially rejective multiple
test procedure", Scandinavian Journal of Statistics 6, 1979): of the 780 pairs of forty rows, few stay significant.

**Ranks.** The rank of a row lies behind the rows that are significantly better and before those significantly worse.
All ordered pairs are tested at once against the largest studentised difference of the repetitions; the pairs that
differ leave, and the others are tested again until none differs (stepwise and simultaneous: Mogstad, Romano, Shaikh and
Wilhelm, "Inference for ranks", Review of Economic Studies 91, 2024, as in their package csranks, whose bootstrap takes
variances as known). Quantiles of the ranks of draws would be biased towards the middle.

**Tasks.** The means of the tasks at hand vary with seeds and queries: `mean_of`. They are no sample of other
tasks, about which nothing is inferred.

**Power.** The test errs in estimating variances, too, so its power is the mean over draws of these estimates
(chi-squared, of their degrees of freedom) of the normal probability that the difference reaches beyond the interval.
Variances are the means over the rows or pairs of a table, since a single row has too few runs to plan by.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri, stdtrit

from polypool.infra.errors import InputError

# --- a score and a difference

PAIRED_FROM = 10
"""Common seeds from which on the rows' runs are paired seed by seed. Pairing takes half of the degrees of freedom: with
ten that pays where runs of one seed correlate by 0.14 (by 0.32 among 45 pairs), with five by 0.31 (0.65)."""
LEVEL = 0.05
_LEAST_LOG_P = -230.0  # a probability of 1e-100, shown as 0


@dataclass(frozen=True, kw_only=True)
class Variance:
    """An estimated variance, and its degrees of freedom."""

    value: float = 0.0
    df: float = math.inf

    def reach(self, level: float) -> float:
        """Return its part of the squared half-width of an interval with the error probability `level`."""
        return float(stdtrit(self.df, level / 2)) ** 2 * self.value if self.value else 0.0


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A score or a difference of two, with its variances.

    Attributes:
        value: the estimate.
        seeds: its variance over seeds; None if unknown, for a row of one run.
        queries: its variance over queries, without the residual variance that `seeds` includes.
    """

    value: float
    seeds: Variance | None
    queries: Variance

    def half_width(self, level: float = LEVEL) -> float:
        """Return the half-width of an interval with the error probability `level`."""
        of_seeds = self.seeds.reach(level) if self.seeds else 0.0
        return math.sqrt(of_seeds + self.queries.reach(level))

    def interval(self, *, best: float = math.nan) -> tuple[float, float]:
        """Return the ends of the 95 % interval; over queries alone if the variance over seeds is unknown.

        Args:
            best: the best possible score; NaN for a difference, and for a metric without one. The variance is taken as
                proportional to the distance from it, as of rare mistakes, so that the interval ends before it (after
                Wilson, JASA 22, 1927). Intervals of scores far from it do not change.
        """
        half, far = self.half_width(), best - self.value
        if not half or not far or math.isnan(far):
            return self.value - half, self.value + half
        more = half**2 / (2 * abs(far))
        longest = abs(far) + more + math.hypot(half, more)
        ends = best - math.copysign(longest, far), best - math.copysign(far**2 / longest, far)
        return min(ends), max(ends)

    @property
    def p(self) -> float:
        """P-value of the null hypothesis that the true value is 0."""
        far = abs(self.value)
        if far <= self.half_width(1.0):
            return 1.0
        if far >= self.half_width(math.exp(_LEAST_LOG_P)):
            return 0.0
        return math.exp(brentq(lambda log_p: self.half_width(math.exp(log_p)) - far, _LEAST_LOG_P, 0.0))


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A tested difference of two scores.

    Attributes:
        value: the first minus the second.
        low, high: its 95 % interval.
        p: p-value of the null hypothesis.
        over_seeds: whether the variance over seeds is known; else interval and p-value are over queries alone.
    """

    value: float
    low: float
    high: float
    p: float
    over_seeds: bool

    @property
    def found(self) -> bool:
        """Whether the null hypothesis is rejected, over queries alone where seeds are unknown."""
        return self.p < LEVEL

    @property
    def significant(self) -> bool | None:
        """Whether the null hypothesis is rejected over seeds and queries; None if it is rejected over queries alone."""
        return None if self.found and not self.over_seeds else self.found


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The scores of a row's runs.

    Attributes:
        seeds: of the runs, in their order; empty where unknown.
        y_Sn: contribution of each of n units to the score of each run, which is their mean.
    """

    seeds: tuple[str, ...]
    y_Sn: np.ndarray


def score(row: Sample, *, borrowed: Variance | None = None) -> Estimate:
    """Return the score of a row.

    Args:
        row: the row.
        borrowed: variance of a run over seeds, for a row of one run; None if unknown.
    """
    queries = _over_units(row.y_Sn.mean(axis=0), less=residual_variance(row.y_Sn))
    return Estimate(value=float(row.y_Sn.mean()), seeds=_over_seeds(row, borrowed), queries=queries)


def difference(one: Sample, other: Sample, *, borrowed: Variance | None = None) -> Estimate:
    """Return the score of one row minus the score of another.

    Args:
        one, other: rows of the same units.
        borrowed: variance of a run over seeds, for rows of one run; None if unknown.
    """
    value = float(one.y_Sn.mean() - other.y_Sn.mean())
    if one.seeds == other.seeds and "" not in one.seeds and len(one.seeds) >= PAIRED_FROM:
        paired = score(Sample(seeds=one.seeds, y_Sn=one.y_Sn - other.y_Sn))
        return Estimate(value=value, seeds=paired.seeds, queries=paired.queries)
    less = sum(residual_variance(row.y_Sn) for row in (one, other)) - 2 * residual_covariance(one, other)
    queries = _over_units(one.y_Sn.mean(axis=0) - other.y_Sn.mean(axis=0), less=less)
    seeds = [_over_seeds(row, borrowed) for row in (one, other)]
    known = [variance for variance in seeds if variance is not None]
    if len(known) < len(seeds):
        return Estimate(value=value, seeds=None, queries=queries)
    total, spread = sum(of.value for of in known), sum(of.value**2 / of.df for of in known)
    welch = Variance(value=total, df=total**2 / spread if spread else math.inf)
    return Estimate(value=value, seeds=welch, queries=queries)


def mean_variance(variances: Iterable[Variance | None]) -> Variance | None:
    """Return the mean of the known variances, which rows of one run borrow; None if none is known.

    Its degrees of freedom are the mean of theirs, not the sum, since rows differ in how much they vary.
    """
    known = [of for of in variances if of is not None]
    if not known:
        return None
    total = sum(of.df for of in known)
    return Variance(value=sum(of.df * of.value for of in known) / total, df=total / len(known))


def seed_variance(y_Sn: np.ndarray) -> Variance | None:
    """Return the variance of a row's runs over seeds; None for one run."""
    runs = len(y_Sn)
    return Variance(value=float(y_Sn.mean(axis=1).var(ddof=1)), df=runs - 1) if runs > 1 else None


def _over_seeds(row: Sample, borrowed: Variance | None) -> Variance | None:
    own = seed_variance(row.y_Sn) or borrowed
    return own and Variance(value=own.value / len(row.y_Sn), df=own.df)


def _over_units(of_units: np.ndarray, *, less: float) -> Variance:
    value = float(of_units.var(ddof=1)) / len(of_units)
    return Variance(value=max(0.0, value - less), df=len(of_units) - 1)


def residual_variance(y_Sn: np.ndarray) -> float:
    """Return the residual variance of a row's score, beyond seeds and units; 0 for one run."""
    runs, units = y_Sn.shape
    if runs == 1:
        return 0.0
    return float(np.square(_residuals(y_Sn)).sum()) / ((runs - 1) * (units - 1)) / (runs * units)


def residual_covariance(one: Sample, other: Sample) -> float:
    """Return the covariance of two rows' scores by the residuals of shared seeds; 0 for fewer than two shared seeds."""
    shared = [seed for seed in one.seeds if seed and seed in other.seeds]
    if len(shared) < 2:
        return 0.0
    units = one.y_Sn.shape[1]
    left = [_residuals(row.y_Sn[[row.seeds.index(seed) for seed in shared]]) for row in (one, other)]
    covariance = float((left[0] * left[1]).sum()) / ((len(shared) - 1) * (units - 1))
    return covariance * len(shared) / (len(one.seeds) * len(other.seeds) * units)


def _residuals(y_Sn: np.ndarray) -> np.ndarray:
    return y_Sn - y_Sn.mean(axis=1, keepdims=True) - y_Sn.mean(axis=0) + y_Sn.mean()


# --- several rows at once

DRAWS = 10_000  # repetitions of a table
_NONE = 1e-9  # share of the largest deviation below which a deviation of differences is rounding


@dataclass(frozen=True, kw_only=True)
class Repetitions:
    """B repetitions of a table in which all R rows are equally good.

    Attributes:
        error_RB: errors of the scores.
        seeds_RB: variances of the scores over seeds, as estimated in each repetition.
        units_B: factors on the variances over units, as estimated in each repetition.
    """

    error_RB: np.ndarray
    seeds_RB: np.ndarray
    units_B: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Joint:
    """Scores of R rows and the distribution of their errors.

    Attributes:
        labels: of the rows.
        value_R: scores.
        seeds_R: variances over seeds; 0 if no row has several runs.
        df_R: degrees of freedom of `seeds_R`.
        over_seeds: whether the variance over seeds is known for at least one row.
        units_RR: covariance over units; positive semidefinite.
        units_df: degrees of freedom of `units_RR`.
    """

    labels: tuple[str, ...]
    value_R: np.ndarray
    seeds_R: np.ndarray
    df_R: np.ndarray
    over_seeds: bool
    units_RR: np.ndarray
    units_df: float

    @cached_property
    def queries_RR(self) -> np.ndarray:
        """Variances over units of the differences of two rows."""
        own_R = np.diag(self.units_RR)
        return np.maximum(own_R[:, None] + own_R - 2 * self.units_RR, 0.0)

    @cached_property
    def deviation_RR(self) -> np.ndarray:
        """Standard deviations of the differences of two rows; 0 where they cannot differ."""
        deviation_RR = np.sqrt(self.seeds_R[:, None] + self.seeds_R + self.queries_RR)
        np.fill_diagonal(deviation_RR, 0.0)
        return np.where(deviation_RR > _NONE * deviation_RR.max(), deviation_RR, 0.0)

    def draw(self, draws: int) -> Repetitions:
        """Draw repetitions of the table, always the same ones."""
        rng, shape = np.random.default_rng(0), (len(self.labels), draws)
        eigenvalue_R, vector_RR = np.linalg.eigh(self.units_RR)
        error_RB = (vector_RR * np.sqrt(np.maximum(eigenvalue_R, 0.0))) @ rng.standard_normal(shape)
        error_RB += rng.standard_normal(shape) * np.sqrt(self.seeds_R)[:, None]
        return Repetitions(
            error_RB=error_RB,
            seeds_RB=(self.seeds_R / self.df_R)[:, None] * rng.chisquare(self.df_R[:, None], shape),
            units_B=rng.chisquare(self.units_df, draws) / self.units_df,
        )

    def studentised(self, drawn: Repetitions, row: int) -> np.ndarray:
        """Return the differences of all rows from one in repetitions, `(R, B)`, over their estimated deviations.

        They are 0 where the rows cannot differ.
        """
        variance_RB = drawn.seeds_RB[row] + drawn.seeds_RB + self.queries_RR[row][:, None] * drawn.units_B
        differ_R1 = self.deviation_RR[row][:, None] > 0
        return (drawn.error_RB - drawn.error_RB[row]) / np.sqrt(np.where(differ_R1, variance_RB, np.inf))

    def scaled(self, times: float, *, plus: float) -> Joint:
        """Return scores multiplied by a number, plus another."""
        return replace(
            self,
            value_R=times * self.value_R + plus,
            seeds_R=times**2 * self.seeds_R,
            units_RR=times**2 * self.units_RR,
        )

    def select(self, labels: Sequence[str]) -> Joint:
        """Return some of the rows."""
        row_R = np.array([self.labels.index(label) for label in labels])
        selected = {name: getattr(self, name)[row_R] for name in ("value_R", "seeds_R", "df_R")}
        return replace(self, labels=tuple(labels), units_RR=self.units_RR[np.ix_(row_R, row_R)], **selected)


def joint(samples: Mapping[str, Sample]) -> Joint:
    """Return the scores of samples of the same units."""
    rows = [*samples.values()]
    unit_Rn = np.stack([row.y_Sn.mean(axis=0) for row in rows])
    residual_RR = np.diag([residual_variance(row.y_Sn) for row in rows])
    for r, q in zip(*np.triu_indices(len(rows), 1), strict=True):
        residual_RR[r, q] = residual_RR[q, r] = residual_covariance(rows[r], rows[q])
    return joint_of(
        tuple(samples),
        unit_Rn.mean(axis=1),
        runs_R=np.array([len(row.y_Sn) for row in rows]),
        seeds=[seed_variance(row.y_Sn) for row in rows],
        units_RR=np.cov(unit_Rn) / unit_Rn.shape[1] - residual_RR,
        units_df=unit_Rn.shape[1] - 1,
    )


def joint_of(
    labels: Sequence[str],
    value_R: np.ndarray,
    *,
    runs_R: np.ndarray,
    seeds: Sequence[Variance | None],
    units_RR: np.ndarray,
    units_df: float,
) -> Joint:
    """Return scores with their variances.

    Args:
        labels: of the rows.
        value_R: scores.
        runs_R: numbers of runs.
        seeds: variances of a run over seeds; None for rows of one run, which borrow the mean of the others.
        units_RR: estimated covariance over units, less the covariance of residuals.
        units_df: degrees of freedom of `units_RR`.
    """
    borrowed = mean_variance(seeds)
    known = [of or borrowed or Variance(df=1.0) for of in seeds]
    eigenvalue_R, vector_RR = np.linalg.eigh(units_RR)
    return Joint(
        labels=tuple(labels),
        value_R=value_R,
        seeds_R=np.array([of.value for of in known]) / runs_R,
        df_R=np.array([of.df for of in known], float),
        over_seeds=borrowed is not None,
        units_RR=(vector_RR * np.maximum(eigenvalue_R, 0.0)) @ vector_RR.T,
        units_df=units_df,
    )


def with_best(joint: Joint, *, sign: int = 1, draws: int = DRAWS) -> dict[str, Difference]:
    """Return the difference of each row from the best of the others, with the p-value of the row being the best.

    Args:
        joint: two rows at least.
        sign: 1 where higher scores are better, else -1.
        draws: repetitions.
    """
    lead_RR, rows = sign * (joint.value_R[:, None] - joint.value_R), len(joint.labels)
    drawn, deviation_RR = joint.draw(draws), joint.deviation_RR
    p_R, reach_R = np.empty(rows), np.empty(rows)
    for row in range(rows):
        others = np.arange(rows) != row
        lag = ratio(-lead_RR[row], deviation_RR[row])[others].max()
        drawn_B = np.sort(joint.studentised(drawn, row)[others].max(axis=0))
        p_R[row], reach_R[row] = _p(drawn_B, lag), _reach(drawn_B)
    in_set_R = p_R >= LEVEL
    found = {}
    for row, label in enumerate(joint.labels):
        others = np.arange(rows) != row
        best = int(np.flatnonzero(others)[lead_RR[row][others].argmin()])
        high = (lead_RR[row] + reach_R[row] * deviation_RR[row])[others].min() if in_set_R[row] else 0.0
        low = (lead_RR[row] - reach_R * deviation_RR[row])[others & in_set_R].min(initial=0.0)
        ends = sorted((sign * float(low), sign * max(float(high), 0.0)))
        value = sign * float(lead_RR[row, best])
        found[label] = Difference(
            value=value, low=ends[0], high=ends[1], p=float(p_R[row]), over_seeds=joint.over_seeds
        )
    return found


def with_baseline(joint: Joint, baseline: str, *, draws: int = DRAWS) -> dict[str, Difference]:
    """Return the difference of each other row from one, with simultaneous 95 % intervals and p-values."""
    row = joint.labels.index(baseline)
    others = np.flatnonzero(np.arange(len(joint.labels)) != row)
    deviation_R = joint.deviation_RR[row]
    drawn_B = np.sort(np.abs(joint.studentised(joint.draw(draws), row)).max(axis=0))
    reach = _reach(drawn_B)
    value_R = joint.value_R - joint.value_R[row]
    p_R = _p(drawn_B, np.abs(ratio(value_R, deviation_R)))
    return {
        joint.labels[other]: Difference(
            value=float(value_R[other]),
            low=float(value_R[other] - reach * deviation_R[other]),
            high=float(value_R[other] + reach * deviation_R[other]),
            p=float(p_R[other]),
            over_seeds=joint.over_seeds,
        )
        for other in others
    }


def ratio(value_R: np.ndarray, deviation_R: np.ndarray) -> np.ndarray:
    """Return values over deviations: infinite for a deviation of 0, and 0 if the value is 0 too."""
    certain_R = np.where(value_R == 0, 0.0, np.copysign(np.inf, value_R))
    return np.where(deviation_R > 0, value_R / np.where(deviation_R > 0, deviation_R, 1.0), certain_R)


def _reach(sorted_B: np.ndarray) -> float:
    """Return the quantile that at most 5 % of the draws exceed, counting the tested value as one more draw."""
    return float(sorted_B[math.ceil((1 - LEVEL) * (len(sorted_B) + 1)) - 1])


def _p(sorted_B: np.ndarray, found: np.ndarray | float) -> np.ndarray:
    """Return the share of draws that reach a value, counting the value as one more draw."""
    return (1 + len(sorted_B) - np.searchsorted(sorted_B, found)) / (1 + len(sorted_B))


def mean_of(joints: Sequence[Joint]) -> Joint:
    """Return the means of scores on one scale over tasks, each with the same rows."""
    tasks, first = len(joints), joints[0]
    seeds_TR = np.stack([of.seeds_R for of in joints]) / tasks**2
    seeds_R = seeds_TR.sum(axis=0)
    spread_R = (seeds_TR**2 / np.stack([of.df_R for of in joints])).sum(axis=0)
    return Joint(
        labels=first.labels,
        value_R=np.mean([of.value_R for of in joints], axis=0),
        seeds_R=seeds_R,
        df_R=np.divide(seeds_R**2, spread_R, out=np.ones_like(seeds_R), where=spread_R > 0),
        over_seeds=all(of.over_seeds for of in joints),
        units_RR=np.sum([of.units_RR for of in joints], axis=0) / tasks**2,
        units_df=min(of.units_df for of in joints),
    )


def rank_intervals(joint: Joint, *, draws: int = DRAWS) -> dict[str, tuple[int, int]]:
    """Return simultaneous 95 % intervals of the ranks of all rows; the highest score has rank 1.

    Args:
        joint: two rows at least.
        draws: repetitions.
    """
    rows = len(joint.labels)
    lead_RR = ratio(joint.value_R[:, None] - joint.value_R, joint.deviation_RR)
    drawn, open_RR = joint.draw(draws), ~np.eye(rows, dtype=bool)
    while open_RR.any():
        largest_B = np.full(draws, -np.inf)
        for row in np.flatnonzero(open_RR.any(axis=0)):
            lead_RB = joint.studentised(drawn, row)[open_RR[:, row]]
            np.maximum(largest_B, lead_RB.max(axis=0), out=largest_B)
        ahead_RR = open_RR & (lead_RR > _reach(np.sort(largest_B)))
        if not ahead_RR.any():
            break
        open_RR &= ~ahead_RR
    ahead_RR = ~(open_RR | np.eye(rows, dtype=bool))
    low_R, high_R = 1 + ahead_RR.sum(axis=0), rows - ahead_RR.sum(axis=1)
    return {label: (int(low_R[row]), int(high_R[row])) for row, label in enumerate(joint.labels)}


# --- power

POWER = 0.8  # the probability that a detectable difference is found
MOST = 1000  # seeds that are considered
_PLANNED = 4000  # draws of estimated variances


@dataclass(frozen=True, kw_only=True)
class Planning:
    """Variances of differences between rows.

    Attributes:
        seeds: variance of single runs around the mean of their row; the mean over rows.
        queries: variance of a difference over queries, which more seeds do not reduce; the mean over pairs of rows.
        units: number of units.
        runs: fewest runs of a row.
        others: rows that one row is compared with, for which the level is corrected.
    """

    seeds: float
    queries: float
    units: int
    runs: int
    others: int

    def power(self, true: float, *, seeds: int, tests: int = 1) -> float:
        """Return the probability that a true difference is found.

        Args:
            true: the difference.
            seeds: runs of each row, at least 2.
            tests: number of tests that share the level (Bonferroni, which is Holm's first step).
        """
        reach = _reach_of(self, seeds, tests)
        deviation = math.sqrt(2 * self.seeds / seeds + self.queries) or 1e-300
        return float((ndtr((true - reach) / deviation) + ndtr((-true - reach) / deviation)).mean())

    def smallest(self, *, seeds: int, tests: int = 1) -> float:
        """Return the smallest difference that is found with the probability `POWER`."""
        power = partial(self.power, seeds=seeds, tests=tests)
        if power(0.0) >= POWER:  # nothing varies
            return 0.0
        high = self.floor(tests=tests) or 1e-9
        while power(high) < POWER:
            high *= 2
        return brentq(lambda true: power(true) - POWER, 0.0, high, rtol=1e-6)

    def floor(self, *, tests: int = 1) -> float:
        """Return the limit of `smallest` for many seeds, set by the queries."""
        quantile = -float(stdtrit(self.units - 1, LEVEL / tests / 2)) + float(ndtri(POWER))
        return quantile * math.sqrt(self.queries)

    def needed(self, difference: float, *, tests: int = 1) -> int | None:
        """Return the fewest seeds of each row that show a difference, at least 2; None if `MOST` do not."""
        if self.smallest(seeds=MOST, tests=tests) > difference:
            return None
        return bisect_left(range(MOST), -difference, lo=2, key=lambda n: -self.smallest(seeds=n, tests=tests))


@lru_cache(maxsize=64)
def _reach_of(planned: Planning, seeds: int, tests: int) -> np.ndarray:
    """Return the half-widths of the interval for draws of its estimated variances."""
    draws, level = np.random.default_rng(0), LEVEL / tests
    queries = planned.queries * draws.chisquare(planned.units - 1, _PLANNED) / (planned.units - 1)
    each = planned.seeds / seeds * draws.chisquare(seeds - 1, (2, _PLANNED)) / (seeds - 1)
    if seeds >= PAIRED_FROM:
        of_seeds, df = 2 * each[0], np.full(_PLANNED, seeds - 1.0)
    else:
        of_seeds = each.sum(axis=0)
        df = of_seeds**2 / np.maximum(np.square(each).sum(axis=0) / (seeds - 1), 1e-300)
        df = np.clip(df, seeds - 1, 2 * (seeds - 1))  # if nothing varies over seeds
    t_queries = float(stdtrit(planned.units - 1, level / 2))
    return np.sqrt(np.square(stdtrit(df, level / 2)) * of_seeds + t_queries**2 * queries)


# --- the tests of a table

LEAST = 10  # units for an interval


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Results of the tests of a group's rows.

    Attributes:
        units: of queries, such as `1,064 images with their captions`.
        labels: the rows that were compared, the best first.
        intervals: ends of the 95 % interval of each row's score.
        best: difference of each row from the best of the others, with the p-value of the row being the best; empty
            for a single row.
        ranks: ends of the simultaneous 95 % interval of each row's rank in its table, as read from a file.
        baseline: the row that others are compared with; empty for none.
        against: difference of each other row from the baseline, with simultaneous intervals and p-values.
        pairs: differences by two labels, each with an interval, p-values corrected by Holm; empty unless requested.
        joint: the scores with their variances; None if the results were read from a file.
        planning: variances that tell the power of other numbers of seeds; None if no row has two.
    """

    units: str
    labels: tuple[str, ...]
    intervals: Mapping[str, tuple[float, float]]
    best: Mapping[str, Difference] = field(default_factory=dict)
    ranks: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    baseline: str = ""
    against: Mapping[str, Difference] = field(default_factory=dict)
    pairs: Mapping[tuple[str, str], Difference] = field(default_factory=dict)
    joint: Joint | None = None
    planning: Planning | None = None

    @property
    def confidence_set(self) -> tuple[str, ...]:
        """The rows that may be the best; it contains the truly best row with a probability of at least 95 %."""
        return tuple(label for label, of in self.best.items() if not of.found)


def judge(
    samples: Mapping[str, Sample],
    *,
    units: str,
    sign: int = 1,
    best: float = math.nan,
    baseline: str = "",
    pairs: bool = False,
) -> Judged:
    """Compare the rows of a table; a single row only gets its interval.

    Args:
        samples: by label, the best first; all of the same units.
        units: description of the units.
        sign: 1 if higher scores are better, else -1.
        best: the best possible score; NaN if unknown.
        baseline: a row to compare the others with; ignored if it is no sample.
        pairs: test all pairs.

    Raises:
        InputError: too few units.
    """
    size = next(iter(samples.values())).y_Sn.shape[1]
    if size < LEAST:
        raise InputError(f"{units} are too few to test differences; at least {LEAST} are needed")
    borrowed = mean_variance(seed_variance(row.y_Sn) for row in samples.values())
    scores = {label: score(row, borrowed=borrowed) for label, row in samples.items()}
    intervals = {label: of.interval(best=best) for label, of in scores.items()}
    judged = Judged(units=units, labels=tuple(samples), intervals=intervals)
    if len(samples) < 2:
        return judged
    of_all, planned = joint(samples), None
    known = baseline if baseline in samples else ""
    if borrowed:
        planned = Planning(
            seeds=borrowed.value,
            queries=float(of_all.queries_RR[np.triu_indices(len(samples), 1)].mean()),
            units=size,
            runs=min(len(row.y_Sn) for row in samples.values()),
            others=len(samples) - 1,
        )
    return replace(
        judged,
        best=with_best(of_all, sign=sign),
        baseline=known,
        against=with_baseline(of_all, known) if known else {},
        pairs=_pairs(samples, borrowed) if pairs else {},
        joint=of_all,
        planning=planned,
    )


def _pairs(samples: Mapping[str, Sample], borrowed: Variance | None) -> dict[tuple[str, str], Difference]:
    pairs = [*itertools.combinations(samples, 2)]
    found = [difference(samples[one], samples[other], borrowed=borrowed) for one, other in pairs]
    judged = {}
    for pair, of, p in zip(pairs, found, holm([of.p for of in found]), strict=True):
        low, high = of.interval()
        judged[pair] = Difference(value=of.value, low=low, high=high, p=p, over_seeds=of.seeds is not None)
    return judged


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm: the probability of any wrong `p < level` among them is at most `level`."""
    order = np.argsort(p, kind="stable")
    stepped = np.asarray(p)[order] * np.arange(len(p), 0, -1)
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(stepped))
    return corrected.tolist()
