"""Tables of scores with known true values, and how often the statistics of `compare` are right about them.

Tables are drawn from the model of `compare`: rows, seeds, and units shared by rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtrit
from scipy.stats import rankdata

from polypool.pipelines.comparison.statistics import (
    LEVEL,
    Joint,
    Sample,
    Variance,
    intervals,
    joint_of,
    mean_of,
    rank_intervals,
    sample_of,
    score,
    with_baseline,
    with_best,
)

DRAWS = 199
"""Errors drawn for each table; `compare` draws 10,000. A test of these few is as exact."""
_SEEDS, _UNITS, _RESIDUAL = 1.7, 2.0, 1.0  # deviations of a run's score: over seeds, units, and both; medians
_SHARED = 0.3  # correlation of two rows' residuals in runs of one seed
_GAP = 6.0  # between the best and the others


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What tables are drawn with.

    Attributes:
        spacing: of the true scores: all equal, a few best, spread or one best.
        rows, seeds, units: how many.
        steady: whether all rows vary alike over seeds; else the logarithms of their deviations vary by 0.5.
        best_varies: how many times as much the best row varies over seeds as it would else.
        over_seeds: median deviation of a run's score over seeds.
        single: share of the rows that have one run, from the first on.
    """

    spacing: str
    rows: int = 41
    seeds: int = 3
    units: int = 1_000
    steady: bool = False
    best_varies: float = 1.0
    over_seeds: float = _SEEDS
    single: float = 0.0

    @property
    def runs_R(self) -> np.ndarray:
        """Numbers of runs, of the same first seeds."""
        return np.where(np.arange(self.rows) < self.single * self.rows, 1, self.seeds)

    @property
    def true_R(self) -> np.ndarray:
        """The true scores; the first is the best, the last the baseline."""
        place_R = np.arange(self.rows)
        return {
            "all equal": np.zeros(self.rows),
            "a few best": np.where(place_R < max(2, self.rows // 8), 0.0, -_GAP),
            "spread": -3 * _GAP * np.maximum(place_R - 1, 0) / self.rows,
            "one best": np.where(place_R == 0, 0.0, -_GAP),
        }[self.spacing]


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The statistics of a table of normal contributions, drawn by their distribution instead of unit by unit.

    Attributes:
        value_R: scores.
        own_R: each row's variance of runs over seeds; 0 for one run.
        units_RR: covariance over units, of the mean over runs, over their number.
        residual_RR: covariance of the scores by residuals; 0 for rows of one run.
        shape: of the table.
    """

    value_R: np.ndarray
    own_R: np.ndarray
    units_RR: np.ndarray
    residual_RR: np.ndarray
    shape: Shape

    @property
    def joint(self) -> Joint:
        """The scores as `compare` has them."""
        runs_R = self.shape.runs_R
        return joint_of(
            [*map(str, range(self.shape.rows))],
            self.value_R,
            runs_R=runs_R,
            seeds=[
                Variance(value=float(own), df=runs - 1) if runs > 1 else None
                for own, runs in zip(self.own_R, runs_R, strict=True)
            ],
            units_RR=self.units_RR - self.residual_RR,
            units_df=self.shape.units - 1,
        )


def draw(shape: Shape, rng: np.random.Generator, *, leads_R: np.ndarray | float = 0.0) -> Drawn:
    """Draw a table.

    The correlation of two rows over units is drawn between 0.5 and 0.9, and their deviations over units differ, too.
    Residuals of one seed correlate between rows by 0.3, as on COCO and Flickr8k.

    Args:
        shape: of the table.
        rng: draws it.
        leads_R: added to the true scores.
    """
    rows, seeds, runs_R, df = shape.rows, shape.seeds, shape.runs_R, shape.units - 1
    seeds_R = shape.over_seeds * np.exp(0.0 if shape.steady else 0.5 * rng.normal(size=rows)) * np.ones(rows)
    seeds_R[0] *= shape.best_varies
    units_R = _UNITS * np.exp(0.2 * rng.normal(size=rows))
    correlation = rng.uniform(0.5, 0.9)
    true_RR = correlation * np.outer(units_R, units_R) + (1 - correlation) * np.diag(units_R**2)
    of_run_RR = _RESIDUAL**2 * (_SHARED + (1 - _SHARED) * np.eye(rows))
    run_RS = np.linalg.cholesky(of_run_RR) @ rng.normal(size=(rows, seeds))
    run_RS += seeds_R[:, None] * rng.normal(size=(rows, seeds))
    has_RS = np.arange(seeds) < runs_R[:, None]
    mean_R = np.where(has_RS, run_RS, 0.0).sum(axis=1) / runs_R
    squares_R = np.where(has_RS, np.square(run_RS - mean_R[:, None]), 0.0).sum(axis=1)
    # residuals of the mean over runs, of which the shorter row's seeds are those of both
    residual_RR = of_run_RR / np.maximum.outer(runs_R, runs_R)
    estimated_RR = _wishart(rng, of_run_RR, (seeds - 1) * df) / np.maximum.outer(runs_R, runs_R)
    return Drawn(
        value_R=shape.true_R + leads_R + np.linalg.cholesky(true_RR) @ rng.normal(size=rows) + mean_R,
        own_R=squares_R / np.maximum(runs_R - 1, 1),
        units_RR=_wishart(rng, true_RR + residual_RR, df),
        residual_RR=np.where(np.minimum.outer(runs_R, runs_R) > 1, estimated_RR, 0.0),
        shape=shape,
    )


def _wishart(rng: np.random.Generator, covariance_RR: np.ndarray, df: int) -> np.ndarray:
    """Draw an estimate of a covariance by Bartlett's decomposition of the Wishart distribution."""
    rows = len(covariance_RR)
    half_RR = np.tril(rng.normal(size=(rows, rows)), -1)
    half_RR += np.diag(np.sqrt(rng.chisquare(df - np.arange(rows))))
    root_RR = np.linalg.cholesky(covariance_RR) @ half_RR
    return root_RR @ root_RR.T / df


def in_set(shape: Shape, rng: np.random.Generator) -> dict[str, float]:
    """Return the findings in one table."""
    drawn = draw(shape, rng)
    found, true_R = drawn.joint, shape.true_R[:-1] - shape.true_R[-1]
    best = with_best(found, draws=DRAWS)
    against = with_baseline(found, found.labels[-1], draws=DRAWS)
    found_R = np.array([of.found for of in against.values()])
    held_R = [of.low <= true <= of.high for of, true in zip(against.values(), true_R, strict=True)]
    holm_RR, equal_R = by_holm(drawn), true_R == 0
    return {
        "best in the set": not best["0"].found,
        "rows in the set": sum(not of.found for of in best.values()),
        "not told from the first (Holm)": shape.rows - int(holm_RR[int(found.value_R.argmax())].sum()),
        "a false alarm": bool(found_R[equal_R].any()) if equal_R.any() else math.nan,
        "all intervals hold": all(held_R),
        "found": found_R[~equal_R].mean() if not equal_R.all() else math.nan,
        "found (Holm)": holm_RR[-1, :-1][~equal_R].mean() if not equal_R.all() else math.nan,
    }


def by_holm(drawn: Drawn) -> np.ndarray:
    """Return which pairs differ by the test of `intervals.difference`, corrected by Holm for all pairs, `(R, R)`."""
    rows, units, over_seeds = drawn.shape.rows, drawn.shape.units, drawn.joint
    one, other = np.triu_indices(rows, 1)
    seeds_R, df_R, cov_RR = over_seeds.seeds_R, over_seeds.df_R, drawn.units_RR - drawn.residual_RR
    seeds_P = seeds_R[one] + seeds_R[other]
    df_P = seeds_P**2 / (seeds_R[one] ** 2 / df_R[one] + seeds_R[other] ** 2 / df_R[other])
    queries_P = np.maximum(cov_RR[one, one] + cov_RR[other, other] - 2 * cov_RR[one, other], 0.0)
    value_P = np.abs(drawn.value_R[one] - drawn.value_R[other])
    found_P = np.zeros(len(one), bool)
    while not found_P.all():
        level = LEVEL / (len(one) - found_P.sum())
        reach_P = stdtrit(df_P, level / 2) ** 2 * seeds_P + stdtrit(units - 1, level / 2) ** 2 * queries_P
        more_P = value_P**2 > reach_P
        if (more_P <= found_P).all():
            break
        found_P |= more_P
    found_RR = np.zeros((rows, rows), bool)
    found_RR[one, other] = found_RR[other, one] = found_P
    return found_RR


def near_best(rng: np.random.Generator, *, right: float, seeds: int, units: int) -> dict[str, float]:
    """Return whether the interval of an accuracy near 100 % holds it, with its end and without it."""
    hard_n, of_seeds_S = rng.normal(size=units), 0.1 * rng.normal(size=seeds)
    level = np.sqrt(1.01 + 0.5) * float(ndtri(right))
    y_Sn = 100.0 * (level + of_seeds_S[:, None] + hard_n + np.sqrt(0.5) * rng.normal(size=(seeds, units)) > 0)
    row = Sample(seeds=tuple(map(str, range(seeds))), y_Sn=y_Sn)
    estimate, true = score(row), 100 * right
    plain, ended = estimate.interval(), estimate.interval(best=100.0)
    return {
        "plain": plain[0] <= true <= plain[1],
        "beyond 100": plain[1] > 100,
        "ended": ended[0] <= true <= ended[1],
    }


@dataclass(frozen=True, kw_only=True)
class Tasks:
    """Tasks whose rows have a score common to all, and leads of their own in each.

    Attributes:
        shape: of the tables, whose true scores are those common to all tasks.
        tasks: how many.
        between: median deviation of the rows' leads over tasks; their logarithms vary by 0.3 between rows.
        unequal: whether leads of the first task are twice as large as in the others.
    """

    shape: Shape
    tasks: int
    between: float
    unequal: bool = False


def in_tasks(of: Tasks, rng: np.random.Generator) -> dict[str, float]:
    """Return the findings in one draw of all tasks."""
    rows, common_R = of.shape.rows, of.shape.true_R
    deviation_R = of.between * np.exp(0.3 * rng.normal(size=rows))
    times_T = np.where((np.arange(of.tasks) == 0) & of.unequal, 2.0, 1.0)
    lead_TR = times_T[:, None] * deviation_R * rng.normal(size=(of.tasks, rows))
    true_TR = common_R + lead_TR
    joints = [draw(of.shape, rng, leads_R=lead_R).joint for lead_R in lead_TR]
    these, labels = mean_of(joints), joints[0].labels
    others = sample_of(labels, np.stack([each.value_R for each in joints]))
    best, true_R = with_best(these, draws=DRAWS), true_TR.mean(axis=0)
    of_others = with_best(others, draws=DRAWS)
    rank_R = np.mean([rankdata(-true_R) for true_R in true_TR], axis=0)
    ranks = rank_intervals(joints, draws=DRAWS)
    return {
        "mean of these": _held(intervals(these), true_R),
        "mean rank": _held(ranks, rank_R),
        "width of a rank": float(np.mean([high - low for low, high in ranks.values()])),
        "best of these": not best[labels[int(true_R.argmax())]].found,
        "rows in their set": sum(not row.found for row in best.values()),
        "lead in others": _held(intervals(others), common_R - common_R.mean()),
        "best of others": not of_others["0"].found,
        "rows in the set of others": sum(not row.found for row in of_others.values()),
    }


def _held(ends: dict[str, tuple[float, float]], true_R: np.ndarray) -> float:
    """Return which part of the intervals hold their true values."""
    return float(
        np.mean([low <= true <= high for (low, high), true in zip(ends.values(), true_R, strict=True)])
    )
