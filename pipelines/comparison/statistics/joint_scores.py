"""The scores of all rows of a table at once, with what other seeds and other queries would change in them.

The model is that of `intervals`. Rows answer the same queries, so that their scores vary together over units: by the
covariance of their contributions. Over seeds each varies alone.

Of three runs a variance has two degrees of freedom, of which the largest among forty differences is beyond all use. A
row's variance over seeds is therefore the mean of its own and of all rows' mean, which counts as sqrt(2 R) degrees of
freedom, in the manner of Smyth (Statistical Applications in Genetics and Molecular Biology 3, 2004); or its own, where
that is larger, so that a row whose seeds differ more than the others' is not taken for one of them. It has the degrees
of freedom of both, and at most half of those of its own and of all rows together. The weight was chosen by simulation:
constant ones from 0 to 20 were tried, of which large ones lost the best of few rows too often if it alone varied three
times as much as the others, and small ones made the set of many rows larger.

The errors of all scores are drawn from a normal distribution over units and from t over seeds, of these variances and
degrees of freedom. Their pairs have the Behrens-Fisher distribution (Fisher, Annals of Eugenics 6, 1935), of which the
tests err too rarely rather than too often. Simulations: `python -m benchmarks.comparing.simulation`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from polypool.pipelines.comparison.statistics.intervals import residual_variance

_NONE = 1e-9  # deviations of differences below this share of the largest are rounding


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The scores of a row's runs.

    Attributes:
        seeds: of the runs, in their order.
        y_Sn: contribution of each of n units to the score of each run, which is their mean.
    """

    seeds: tuple[str, ...]
    y_Sn: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Joint:
    """Scores of R rows and the distribution of their errors.

    Attributes:
        labels: of the rows.
        value_R: scores.
        seeds_R: variances over seeds; 0 for rows of one run, which cannot say.
        df_R: degrees of freedom of these.
        several_R: whether a row has several runs.
        units_RR: covariance over units.
        units_df: degrees of freedom of it.
    """

    labels: tuple[str, ...]
    value_R: np.ndarray
    seeds_R: np.ndarray
    df_R: np.ndarray
    several_R: np.ndarray
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

    def errors(self, draws: int, *, seed: int = 0) -> np.ndarray:
        """Draw errors of the scores, `(R, draws)`."""
        rng = np.random.default_rng(seed)
        eigenvalue_R, vector_RR = np.linalg.eigh(self.units_RR)
        root_RR = vector_RR * np.sqrt(np.maximum(eigenvalue_R, 0.0))
        error_RB = root_RR @ rng.standard_normal((len(self.labels), draws))
        error_RB /= np.sqrt(rng.chisquare(self.units_df, draws) / self.units_df)
        over_seeds_RB = rng.standard_t(self.df_R[:, None], error_RB.shape)
        return error_RB + over_seeds_RB * np.sqrt(self.seeds_R)[:, None]

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
        rows = {name: getattr(self, name)[place] for name in ("value_R", "seeds_R", "df_R", "several_R")}
        return replace(self, labels=tuple(labels), units_RR=self.units_RR[np.ix_(place, place)], **rows)


def joint(samples: Mapping[str, Sample]) -> Joint:
    """Return the scores of samples of the same units."""
    rows = [sample.y_Sn for sample in samples.values()]
    runs_R, units = np.array([len(y_Sn) for y_Sn in rows]), rows[0].shape[1]
    unit_Rn = np.stack([y_Sn.mean(axis=0) for y_Sn in rows])
    residual_R = np.array([residual_variance(y_Sn) for y_Sn in rows])
    several_R = runs_R > 1
    own_R = np.array([y_Sn.mean(axis=1).var(ddof=min(1, len(y_Sn) - 1)) for y_Sn in rows])
    variance_R, df_R = shared_variances(own_R, runs_R - 1)
    return Joint(
        labels=tuple(samples),
        value_R=unit_Rn.mean(axis=1),
        seeds_R=variance_R / runs_R,
        df_R=df_R,
        several_R=several_R,
        units_RR=np.cov(unit_Rn) / units - np.diag(residual_R),
        units_df=units - 1,
    )


def shared_variances(own_R: np.ndarray, df_R: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return variances that borrow from each other, and their degrees of freedom.

    Args:
        own_R: each row's own.
        df_R: their degrees of freedom; rows of none keep a variance of 0.
    """
    has_R, total = df_R > 0, df_R.sum()
    everyone = (df_R * own_R).sum() / max(total, 1)
    weight = math.sqrt(2 * max(has_R.sum(), 1))
    shared_R = np.maximum(own_R, (weight * everyone + df_R * own_R) / (weight + df_R))
    shared_df_R = np.minimum(weight + df_R, (total + df_R) / 2)
    return np.where(has_R, shared_R, 0.0), np.where(has_R, shared_df_R, 1.0)
