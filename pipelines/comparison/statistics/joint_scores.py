"""The scores of all rows of a table at once, with what other seeds and other queries would change in them.

The model is that of `intervals`. Rows answer the same queries, so that their scores vary together over units: by the
covariance of their contributions, less that of the residuals of shared seeds. What noise makes negative in that
estimate (its negative eigenvalues) is set to 0. Over seeds each row varies alone, by its own variance, so that no row's
test depends on how much another one varies; a row of one run borrows the mean of the others' variances.

Of three runs a variance has two degrees of freedom. `Joint.draw` therefore repeats the whole table: errors of the
scores, and variances as other seeds and queries would estimate them, in which these errors are then measured
(`studentised`). Shares of such repetitions are p-values: a parametric bootstrap of the studentised maximum (Beran,
Journal of the American Statistical Association 83, 1988). Simulations: docs/compare.md. By
these, quantiles of errors in t with the variance of each row held fixed (Behrens-Fisher) never err and exclude hardly a
row of three seeds; variances drawn towards their mean make larger sets than one's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from polypool.pipelines.comparison.statistics.intervals import (
    Sample,
    Variance,
    borrowed_of,
    of_runs,
    residual_covariance,
    residual_variance,
)

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
