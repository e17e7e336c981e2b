"""Simultaneous comparisons of rows, and their means and ranks over tasks.

**Joint scores.** The model is that of `intervals`. Rows answer the same queries, so their scores vary together over
units: by the covariance of their contributions, less that of the residuals of shared seeds. Negative eigenvalues of
that estimate, which are noise, are set to 0. Over seeds each row varies alone, by its own variance, so that no row's
test depends on how much another one varies; a row of one run borrows the mean of the others' variances.

Of three runs a variance has two degrees of freedom. `Joint.draw` therefore repeats the whole table: errors of the
scores, and variances as other seeds and queries would estimate them, in which these errors are then measured
(`studentised`). Shares of such repetitions are p-values: a parametric bootstrap of the studentised maximum (Beran,
Journal of the American Statistical Association 83, 1988). Simulations: docs/statistics.md. By these, quantiles of
errors in t with the variance of each row held fixed (Behrens-Fisher) never err and exclude hardly a row of three seeds;
variances drawn towards their mean make larger sets than one's own.

**The best and a baseline.** Differences are taken in their standard deviations. A row leaves the confidence set where
its largest lag behind another row exceeds what 95 % of repetitions give if all rows are equally good. The best row is
then in the set with a probability of at least 95 %. The number of rows in the set needs no correction, as only the test
of the one row that is the best can err. The intervals of the differences from the best of the others end at 0 for rows
outside the set. Against a baseline, the largest difference of either sign counts.

Sources: Hsu, "Constrained simultaneous confidence intervals for multiple comparisons with the best", Annals of
Statistics 12, 1984; Dunnett, "A multiple comparison procedure for comparing several treatments with a control", JASA
50, 1955.

**Tasks.** What an interval covers depends on what is drawn anew. The means of the tasks at hand vary with seeds and
queries: `mean_of`. If the tasks are a sample of others like them, the leads of the rows also vary from task to task;
the variance of the leads that are measured includes that of seeds and queries: `sample_of`.

The interval of a rank begins after the rows that are significantly better and ends before those significantly worse,
by the largest difference of the row from any other in any task (Mogstad, Romano, Shaikh and Wilhelm, Review of Economic
Studies 91, 2024). Quantiles of the ranks of draws would be biased towards the middle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from polypool.pipelines.comparison.statistics.intervals import (
    LEVEL,
    Difference,
    Estimate,
    Sample,
    Variance,
    borrowed_of,
    of_runs,
    residual_covariance,
    residual_variance,
)

DRAWS = 10_000
_NONE = 1e-9  # deviations of differences below this share of the largest are rounding


@dataclass(frozen=True, kw_only=True)
class Repetitions:
    """B repetitions of a table in which all R rows are equally good.

    Attributes:
        error_RB: scores.
        seeds_RB: their variances over seeds, as estimated in each.
        units_B: factors on the variances over units, likewise.
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
        df_R: degrees of freedom of these.
        over_seeds: whether variances over seeds are known, of some rows at least.
        units_RR: covariance over units; positive semidefinite.
        units_df: degrees of freedom of it.
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

    def draw(self, draws: int, *, seed: int = 0) -> Repetitions:
        """Draw repetitions of the table."""
        rng, shape = np.random.default_rng(seed), (len(self.labels), draws)
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

    def of(self, labels: Sequence[str]) -> Joint:
        """Return some of the rows."""
        place = np.array([self.labels.index(label) for label in labels])
        rows = {name: getattr(self, name)[place] for name in ("value_R", "seeds_R", "df_R")}
        return replace(self, labels=tuple(labels), units_RR=self.units_RR[np.ix_(place, place)], **rows)


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
        seeds=[of_runs(row.y_Sn) for row in rows],
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
        seeds: variances of a run over seeds; None for rows of one run, which borrow the mean of the others'.
        units_RR: estimated covariance over units, without that of residuals.
        units_df: degrees of freedom of it.
    """
    borrowed = borrowed_of(seeds)
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
    """Return the difference of each row from the best of the others; p is that of its being the best.

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
        behind = ratio(-lead_RR[row], deviation_RR[row])[others].max()
        drawn_B = np.sort(joint.studentised(drawn, row)[others].max(axis=0))
        p_R[row], reach_R[row] = _p(drawn_B, behind), _reach(drawn_B)
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
    """Return values in deviations; infinite where these are 0, unless the value is 0, too."""
    certain_R = np.where(value_R == 0, 0.0, np.copysign(np.inf, value_R))
    return np.where(deviation_R > 0, value_R / np.where(deviation_R > 0, deviation_R, 1.0), certain_R)


def _reach(sorted_B: np.ndarray) -> float:
    """Return what at most 5 % of draws exceed, of which the one that is tested counts as one more."""
    return float(sorted_B[math.ceil((1 - LEVEL) * (len(sorted_B) + 1)) - 1])


def _p(sorted_B: np.ndarray, found: np.ndarray | float) -> np.ndarray:
    """Return how often draws reach what was found, which counts as one more draw."""
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


def sample_of(labels: Sequence[str], value_TR: np.ndarray) -> Joint:
    """Return the leads of rows over the mean of all, with their variation over tasks.

    Args:
        labels: of the rows.
        value_TR: scores on one scale, of two tasks at least.
    """
    tasks, rows = value_TR.shape
    lead_TR = value_TR - value_TR.mean(axis=1, keepdims=True)
    return Joint(
        labels=tuple(labels),
        value_R=lead_TR.mean(axis=0),
        seeds_R=lead_TR.var(axis=0, ddof=1) / tasks,
        df_R=np.full(rows, tasks - 1.0),
        over_seeds=True,
        units_RR=np.zeros((rows, rows)),
        units_df=1,
    )


def intervals(joint: Joint) -> dict[str, tuple[float, float]]:
    """Return the ends of the 95 % interval of each score, each alone."""
    queries_R = np.maximum(np.diag(joint.units_RR), 0.0)
    ends = {}
    for row, label in enumerate(joint.labels):
        seeds = Variance(value=float(joint.seeds_R[row]), df=float(joint.df_R[row]))
        queries = Variance(value=float(queries_R[row]), df=joint.units_df)
        ends[label] = Estimate(value=float(joint.value_R[row]), seeds=seeds, queries=queries).interval()
    return ends


def rank_intervals(joints: Sequence[Joint], *, draws: int = DRAWS) -> dict[str, tuple[float, float]]:
    """Return the ends of an interval of each row's mean rank over tasks; it errs in 5 % of cases at most.

    Args:
        joints: scores of the same rows, of which higher ones are better.
        draws: repetitions.
    """
    drawn_T = [joint.draw(draws, seed=task) for task, joint in enumerate(joints)]
    ends = {}
    for row, label in enumerate(joints[0].labels):
        largest_TB = [
            np.abs(joint.studentised(drawn, row)).max(axis=0)
            for joint, drawn in zip(joints, drawn_T, strict=True)
        ]
        reach = np.quantile(np.max(largest_TB, axis=0), 1 - LEVEL)
        better_TR = np.stack(
            [ratio(joint.value_R - joint.value_R[row], joint.deviation_RR[row]) for joint in joints]
        )
        surely_better, surely_worse = (better_TR > reach).sum(axis=1), (better_TR < -reach).sum(axis=1)
        last = len(joints[0].labels) - surely_worse.mean()
        ends[label] = 1 + float(surely_better.mean()), float(last)
    return ends
