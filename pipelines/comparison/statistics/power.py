"""Power of the comparison: detectable differences for numbers of seeds, and the seeds that a difference needs.

The test of `intervals` errs in how it estimates variances, too, so its power is the mean over draws of these estimates
(chi-squared, of their degrees of freedom) of the normal probability that the difference reaches beyond the interval.
Variances are the means over the rows or pairs of a table, of which each alone has too few runs to plan by.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri, stdtrit

from polypool.pipelines.comparison.statistics.intervals import LEVEL, PAIRED_FROM

POWER = 0.8  # the probability with which a detectable difference is found
MOST = 1000  # the most seeds that are considered
_DRAWS = 4000


@dataclass(frozen=True, kw_only=True)
class Planning:
    """Variances of differences between rows.

    Attributes:
        seeds: variance of single runs around the mean of their row.
        queries: variance of a difference over queries, which more seeds do not reduce.
        units: number of units.
        runs: the fewest of a row.
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
            tests: how many the level is shared by, as by Bonferroni; Holm's first step is the same.
        """
        return self._power(self._reach(seeds, tests), seeds)(true)

    def smallest(self, *, seeds: int, tests: int = 1) -> float:
        """Return the smallest difference that is found with the probability `POWER`."""
        power = self._power(self._reach(seeds, tests), seeds)
        if power(0.0) >= POWER:  # nothing varies
            return 0.0
        high = self.floor(tests=tests) or 1e-9
        while power(high) < POWER:
            high *= 2
        return brentq(lambda true: power(true) - POWER, 0.0, high, rtol=1e-6)

    def floor(self, *, tests: int = 1) -> float:
        """Return the limit of `smallest` for many seeds, which the queries determine."""
        quantile = -float(stdtrit(self.units - 1, LEVEL / tests / 2)) + float(ndtri(POWER))
        return quantile * math.sqrt(self.queries)

    def needed(self, difference: float, *, tests: int = 1) -> int | None:
        """Return the fewest seeds of each row that show a difference, at least 2; None if `MOST` do not."""
        if self.smallest(seeds=MOST, tests=tests) > difference:
            return None
        shown = lambda seeds: self.smallest(seeds=seeds, tests=tests) <= difference  # noqa: E731
        return bisect_left(range(MOST), True, lo=2, key=shown)

    def _reach(self, seeds: int, tests: int) -> np.ndarray:
        """Return how far the interval reaches for draws of its estimated variances."""
        draws, level = np.random.default_rng(0), LEVEL / tests
        queries = self.queries * draws.chisquare(self.units - 1, _DRAWS) / (self.units - 1)
        each = self.seeds / seeds * draws.chisquare(seeds - 1, (2, _DRAWS)) / (seeds - 1)
        if seeds >= PAIRED_FROM:
            of_seeds, df = 2 * each[0], np.full(_DRAWS, seeds - 1.0)
        else:
            of_seeds = each.sum(axis=0)
            df = of_seeds**2 / np.maximum(np.square(each).sum(axis=0) / (seeds - 1), 1e-300)
            df = np.clip(df, seeds - 1, 2 * (seeds - 1))  # where nothing varies over seeds
        t_queries = float(stdtrit(self.units - 1, level / 2))
        return np.sqrt(np.square(stdtrit(df, level / 2)) * of_seeds + t_queries**2 * queries)

    def _power(self, reach: np.ndarray, seeds: int) -> Callable[[float], float]:
        deviation = math.sqrt(2 * self.seeds / seeds + self.queries) or 1e-300

        def power(true: float) -> float:
            beyond = ndtr((true - reach) / deviation) + ndtr((-true - reach) / deviation)
            return float(beyond.mean())

        return power


def planning(rows: Sequence[np.ndarray], *, queries: Sequence[float]) -> Planning | None:
    """Return the variances of the differences of a table.

    Args:
        rows: what each of n units adds to the scores of each row's runs, `(S, n)`.
        queries: variances over queries of the difference of every two rows.

    Returns:
        None where no row has two runs.
    """
    several = [y_Sn.mean(axis=1) for y_Sn in rows if len(y_Sn) > 1]
    if not several:
        return None
    squares = sum(float(np.square(run_S - run_S.mean()).sum()) for run_S in several)
    return Planning(
        seeds=squares / sum(len(run_S) - 1 for run_S in several),
        queries=float(np.mean(queries)),
        units=rows[0].shape[1],
        runs=min(map(len, rows)),
        others=len(rows) - 1,
    )
