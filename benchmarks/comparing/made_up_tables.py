"""Tables of scores with known true values, drawn from the model of `compare`: rows, seeds, and units shared by rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polypool.pipelines.comparison.statistics.intervals import Variance
from polypool.pipelines.comparison.statistics.joint_scores import Joint, joint_of

DRAWS = 199
"""Errors drawn for each table; `compare` draws 10,000. A test of these few is as exact."""
SPACINGS = ("all equal", "a few best", "spread", "one best")
_SEEDS, _UNITS, _RESIDUAL = 1.7, 2.0, 1.0  # deviations of a run's score: over seeds, units, and both; medians
_SHARED = 0.3  # correlation of two rows' residuals in runs of one seed
_GAP = 6.0  # between the best and the others


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What tables are drawn with.

    Attributes:
        spacing: of the true scores, one of `SPACINGS`.
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
        """The true scores, of which the first is the best, and the last the baseline."""
        place_R = np.arange(self.rows)
        return {
            "all equal": np.zeros(self.rows),
            "a few best": np.where(place_R < max(2, self.rows // 8), 0.0, -_GAP),
            "spread": -3 * _GAP * np.maximum(place_R - 1, 0) / self.rows,
            "one best": np.where(place_R == 0, 0.0, -_GAP),
        }[self.spacing]


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What a table of normal contributions says, which is drawn by its distribution instead of unit by unit.

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
