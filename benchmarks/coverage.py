"""`python -m benchmarks.coverage [TABLES]`: coverage of the sets and intervals of `compare`, as a table.

Tables with known true values are drawn from the model of `compare`: rows, seeds, and units shared by rows.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import ndtri

from polypool.pipelines.comparison.statistics import (
    Difference,
    Joint,
    Sample,
    Variance,
    joint_of,
    rank_intervals,
    score,
    with_baseline,
    with_best,
)

DRAWS = 199
"""Repetitions drawn for each table; `compare` draws 10,000. A test with so few has the same error rate."""
_SEEDS, _UNITS = 1.7, 2.0  # median deviations of a run's score over seeds, and over units
_GAP = 6.0  # between the best and the others
_COLUMNS = dict.fromkeys(("best in the set", "all lags", "all differences", "all ranks"), True)
_COLUMNS |= {"rows in the set": False, "width of a rank": False, "found": True}
"""The findings, and whether they are shares."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Parameters of random tables.

    Attributes:
        spacing: of the true scores: all equal, a few best, spread or one best.
        rows, seeds, units: how many.
        steady: whether all rows have the same deviation over seeds; else the logarithms of the deviations vary by 0.5.
        best_varies: factor on the deviation of the best row over seeds.
        over_seeds: median deviation of a run's score over seeds.
        single: share of the rows that have one run; these are the first rows.
        mixed: whether rows have from one to `seeds` runs.
        residual: deviation of a run's score over both seeds and units.
        shared: correlation of two rows' residuals in runs of one seed; 0.3 on COCO and Flickr8k.
    """

    spacing: str
    rows: int = 13
    seeds: int = 3
    units: int = 1_000
    steady: bool = False
    best_varies: float = 1.0
    over_seeds: float = _SEEDS
    single: float = 0.0
    mixed: bool = False
    residual: float = 1.0
    shared: float = 0.3

    @property
    def runs_R(self) -> np.ndarray:
        """Numbers of runs; a row with fewer runs has the first of the seeds."""
        place_R = np.arange(self.rows)
        if self.mixed:
            return 1 + place_R % self.seeds
        return np.where(place_R < self.single * self.rows, 1, self.seeds)

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
    """The statistics of a table of normal contributions, drawn from their distribution instead of unit by unit.

    Attributes:
        value_R: scores.
        own_R: each row's variance of runs over seeds; 0 for one run.
        units_RR: estimated covariance of the scores over units, including residuals.
        residual_RR: estimated covariance of the scores by residuals; 0 for rows of one run.
        shape: of the table.
    """

    value_R: np.ndarray
    own_R: np.ndarray
    units_RR: np.ndarray
    residual_RR: np.ndarray
    shape: Shape

    @property
    def joint(self) -> Joint:
        """The scores with their variances, as in `compare`."""
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


def draw(shape: Shape, rng: np.random.Generator) -> Drawn:
    """Draw a table.

    The correlation of two rows over units is drawn between 0.5 and 0.9, and their deviations over units differ, too.
    """
    rows, seeds, runs_R, df = shape.rows, shape.seeds, shape.runs_R, shape.units - 1
    seeds_R = shape.over_seeds * np.exp(0.0 if shape.steady else 0.5 * rng.normal(size=rows)) * np.ones(rows)
    seeds_R[0] *= shape.best_varies
    units_R = _UNITS * np.exp(0.2 * rng.normal(size=rows))
    correlation = rng.uniform(0.5, 0.9)
    true_RR = correlation * np.outer(units_R, units_R) + (1 - correlation) * np.diag(units_R**2)
    of_run_RR = shape.residual**2 * (shape.shared + (1 - shape.shared) * np.eye(rows))
    run_RS = _root(of_run_RR) @ rng.normal(size=(rows, seeds))
    run_RS += seeds_R[:, None] * rng.normal(size=(rows, seeds))
    has_RS = np.arange(seeds) < runs_R[:, None]
    mean_R = np.where(has_RS, run_RS, 0.0).sum(axis=1) / runs_R
    squares_R = np.where(has_RS, np.square(run_RS - mean_R[:, None]), 0.0).sum(axis=1)
    # residuals of the means over runs; two rows share the seeds of the shorter one
    residual_RR = of_run_RR / np.maximum.outer(runs_R, runs_R)
    estimated_RR = _wishart(rng, of_run_RR, max(seeds - 1, 1) * df) / np.maximum.outer(runs_R, runs_R)
    return Drawn(
        value_R=shape.true_R + np.linalg.cholesky(true_RR) @ rng.normal(size=rows) + mean_R,
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
    root_RR = _root(covariance_RR) @ half_RR
    return root_RR @ root_RR.T / df


def _root(covariance_RR: np.ndarray) -> np.ndarray:
    return np.linalg.cholesky(covariance_RR) if covariance_RR.any() else covariance_RR


def findings(shape: Shape, rng: np.random.Generator) -> dict[str, float]:
    """Return whether the sets and intervals of one table contain the truth, and how large they are."""
    drawn, true_R = draw(shape, rng), shape.true_R
    found = drawn.joint
    best = with_best(found, draws=DRAWS)
    against = with_baseline(found, found.labels[-1], draws=DRAWS)
    ranks = rank_intervals(found, draws=DRAWS)
    lag_R = [true - np.delete(true_R, row).max() for row, true in enumerate(true_R)]
    difference_R = true_R[:-1] - true_R[-1]
    found_R, equal_R = np.array([of.found for of in against.values()]), difference_R == 0
    return {
        "best in the set": not best["0"].found,
        "all lags": all(_holds(of, true) for of, true in zip(best.values(), lag_R, strict=True)),
        "all differences": all(
            _holds(of, true) for of, true in zip(against.values(), difference_R, strict=True)
        ),
        "all ranks": all(
            low <= 1 + (true_R > true).sum() and high >= shape.rows - (true_R < true).sum()
            for (low, high), true in zip(ranks.values(), true_R, strict=True)
        ),
        "rows in the set": sum(not of.found for of in best.values()),
        "width of a rank": float(np.mean([high - low for low, high in ranks.values()])),
        "found": found_R[~equal_R].mean() if not equal_R.all() else math.nan,
    }


def _holds(of: Difference, true: float) -> bool:
    return of.low <= true <= of.high


def near_best(rng: np.random.Generator, *, right: float, seeds: int, units: int) -> dict[str, float]:
    """Return whether the interval of an accuracy near 100 % contains it, plain and ended at 100, or exceeds 100."""
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


SHAPES = {
    "13 rows, spread, 5 seeds": Shape(spacing="spread", seeds=5),
    "13 rows, spread, 3 seeds": Shape(spacing="spread"),
    "13 rows, a few best, 3 seeds": Shape(spacing="a few best"),
    "13 rows, all equal, 5 seeds": Shape(spacing="all equal", seeds=5),
    "13 rows, all equal, 4 seeds": Shape(spacing="all equal", seeds=4),
    "13 rows, all equal, 3 seeds": Shape(spacing="all equal"),
    "13 rows, all equal, 2 seeds": Shape(spacing="all equal", seeds=2),
    "13 rows, all equal, 1 to 5 seeds": Shape(spacing="all equal", seeds=5, mixed=True),
    "13 rows, all equal, 3 seeds, 240 units": Shape(spacing="all equal", units=240),
    "13 rows, all equal, 3 seeds, no shared residuals": Shape(spacing="all equal", shared=0.0),
    "13 rows, all equal, 3 seeds, residuals shared by 0.8": Shape(spacing="all equal", shared=0.8),
    "13 rows, all equal, 3 seeds, the best varies 3 x": Shape(spacing="all equal", best_varies=3.0),
    "41 rows, all equal, 3 seeds": Shape(spacing="all equal", rows=41),
    "5 rows, all equal, 3 seeds, the best varies 3 x": Shape(spacing="all equal", rows=5, best_varies=3.0),
    "2 rows, all equal, 3 seeds": Shape(spacing="all equal", rows=2),
    "13 rows, all equal, all but one with one seed": Shape(spacing="all equal", single=0.9),
    "13 rows, all equal, 1 seed": Shape(spacing="all equal", seeds=1),
    "13 rows, all equal, 1 seed, that does not vary": Shape(
        spacing="all equal", seeds=1, over_seeds=0.0, residual=0.0
    ),
}


def main(*, tables: int = 2_000) -> None:
    """Print a line for each shape: shares in per cent, and means."""
    print("| tables | " + " | ".join(_COLUMNS) + " |\n|---|" + "---:|" * len(_COLUMNS))
    for name, shape in SHAPES.items():
        rng = np.random.default_rng(0)
        found = pd.DataFrame([findings(shape, rng) for _ in range(tables)], dtype=float).mean()
        cells = [
            f"{100 * found[name]:.1f}" if share else f"{found[name]:.1f}" for name, share in _COLUMNS.items()
        ]
        print(f"| {name} | " + " | ".join(cells).replace("nan", "\u2013") + " |", flush=True)


if __name__ == "__main__":
    main(tables=int(sys.argv[1]) if sys.argv[1:] else 2_000)
