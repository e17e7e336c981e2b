"""Tables of scores with known true values, drawn from the model of `compare`: rows, seeds, and units shared by rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polypool.pipelines.comparison.statistics.joint_scores import Joint, shared_variances

DRAWS = 199
"""Errors drawn for each table; `compare` draws 10,000. A test of these few is as exact."""
SPACINGS = ("all equal", "a few best", "spread", "one best")
_SEEDS, _UNITS, _RESIDUAL = 1.7, 2.0, 1.0  # deviations of a run's score: over seeds, units, and both; medians
_GAP = 6.0  # between the best and the others


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What tables are drawn with.

    Attributes:
        spacing: of the true scores, one of `SPACINGS`.
        rows, seeds, units: how many.
        steady: whether all rows vary alike over seeds; else the logarithms of their deviations vary by 0.5.
        best_varies: how many times as much the best row varies over seeds as it would else.
    """

    spacing: str
    rows: int = 41
    seeds: int = 3
    units: int = 1_000
    steady: bool = False
    best_varies: float = 1.0

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
        own_R: each row's variance of runs over seeds.
        units_RR: covariance over units, of the mean over runs, over their number.
        residual_R: residual variance of the scores.
        shape: of the table.
    """

    value_R: np.ndarray
    own_R: np.ndarray
    units_RR: np.ndarray
    residual_R: np.ndarray
    shape: Shape

    @property
    def joint(self) -> Joint:
        """The scores as `compare` has them."""
        rows, seeds = self.shape.rows, self.shape.seeds
        variance_R, df_R = shared_variances(self.own_R, np.full(rows, seeds - 1))
        return Joint(
            labels=tuple(map(str, range(rows))),
            value_R=self.value_R,
            seeds_R=variance_R / seeds,
            df_R=df_R,
            several_R=np.ones(rows, bool),
            units_RR=self.units_RR - np.diag(self.residual_R),
            units_df=self.shape.units - 1,
        )


def draw(shape: Shape, rng: np.random.Generator, *, leads_R: np.ndarray | float = 0.0) -> Drawn:
    """Draw a table.

    The correlation of two rows over units is drawn between 0.5 and 0.9, and their deviations over units differ, too.

    Args:
        shape: of the table.
        rng: draws it.
        leads_R: added to the true scores.
    """
    rows, seeds, df = shape.rows, shape.seeds, shape.units - 1
    seeds_R = _SEEDS * np.exp(0.0 if shape.steady else 0.5 * rng.normal(size=rows)) * np.ones(rows)
    seeds_R[0] *= shape.best_varies
    units_R = _UNITS * np.exp(0.2 * rng.normal(size=rows))
    correlation = rng.uniform(0.5, 0.9)
    true_RR = correlation * np.outer(units_R, units_R) + (1 - correlation) * np.diag(units_R**2)
    true_RR += np.eye(rows) * _RESIDUAL**2 / seeds
    root_RR = np.linalg.cholesky(true_RR)
    # Bartlett's decomposition of a Wishart distribution
    half_RR = np.tril(rng.normal(size=(rows, rows)), -1) + np.diag(
        np.sqrt(rng.chisquare(df - np.arange(rows)))
    )
    of_run_R = seeds_R**2 + _RESIDUAL**2
    left_df = (seeds - 1) * df
    return Drawn(
        value_R=shape.true_R
        + leads_R
        + root_RR @ rng.normal(size=rows)
        + seeds_R / np.sqrt(seeds) * rng.normal(size=rows),
        own_R=of_run_R * rng.chisquare(seeds - 1, rows) / (seeds - 1),
        units_RR=(root_RR @ half_RR) @ (root_RR @ half_RR).T / df,
        residual_R=_RESIDUAL**2 / seeds * rng.chisquare(left_df, rows) / left_df,
        shape=shape,
    )
