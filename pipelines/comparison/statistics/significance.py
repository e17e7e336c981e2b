"""Significance of the differences between all pairs of rows of a table, corrected for their number.

Source: Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6, 1979.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from polypool.infra.errors import InputError
from polypool.pipelines.comparison.statistics.intervals import LEVEL, Estimate, difference, score
from polypool.pipelines.comparison.statistics.power import Planning, planning

LEAST = 10  # the fewest units for an interval


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A difference of two rows.

    Attributes:
        value: the first minus the second.
        low, high: its 95 % interval, not corrected.
        p: corrected by Holm for all pairs of the table.
        over_seeds: whether both rows have several runs; else all of this is over queries alone, and what other seeds
            would do cannot be judged.
    """

    value: float
    low: float
    high: float
    p: float
    over_seeds: bool

    @property
    def found(self) -> bool:
        """Whether there is a difference, as far as it could be tested."""
        return self.p < LEVEL

    @property
    def significant(self) -> bool | None:
        """Whether there is one over seeds and queries; None if the queries show one and seeds cannot be judged."""
        return None if self.found and not self.over_seeds else self.found

    def __neg__(self) -> Difference:
        return Difference(
            value=-self.value, low=-self.high, high=-self.low, p=self.p, over_seeds=self.over_seeds
        )


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Results of the tests of a group's rows.

    Attributes:
        units: of queries, such as `1,064 images with their captions`.
        labels: the rows that were compared, the best first.
        tests: number of pairs, for which p-values are corrected.
        intervals: of each row's score, the ends of the 95 % interval.
        pairs: by two labels, the better one first.
        planning: what other numbers of seeds would show; None where no row has two.
    """

    units: str
    labels: tuple[str, ...]
    tests: int
    intervals: Mapping[str, tuple[float, float]]
    pairs: Mapping[tuple[str, str], Difference]
    planning: Planning | None = None

    def difference(self, one: str, other: str) -> Difference | None:
        """Return the score of one row minus that of another; None if one of them was not compared."""
        if (one, other) in self.pairs:
            return self.pairs[one, other]
        return -self.pairs[other, one] if (other, one) in self.pairs else None


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The scores of a row's runs.

    Attributes:
        seeds: of the runs, in their order.
        y_Sn: contribution of each of n units to the score of each run, which is their mean.
    """

    seeds: tuple[str, ...]
    y_Sn: np.ndarray


def judge(samples: Mapping[str, Sample], *, units: str) -> Judged:
    """Compare every two rows.

    Args:
        samples: by label, the best first; all of the same units.
        units: what these are, in words.

    Raises:
        InputError: too few units.
    """
    size = next(iter(samples.values())).y_Sn.shape[1]
    if size < LEAST:
        raise InputError(f"{size} queries are too few to judge differences by, at least {LEAST} are needed")
    pairs = [*itertools.combinations(samples, 2)]
    estimates = [_difference(samples[one], samples[other]) for one, other in pairs]
    corrected = holm([estimate.p for estimate in estimates])
    return Judged(
        units=units,
        labels=tuple(samples),
        tests=len(pairs),
        intervals={label: score(sample.y_Sn).interval() for label, sample in samples.items()},
        pairs={
            pair: _corrected(estimate, p)
            for pair, estimate, p in zip(pairs, estimates, corrected, strict=True)
        },
        planning=planning(
            [sample.y_Sn for sample in samples.values()],
            queries=[estimate.queries.value for estimate in estimates],
        ),
    )


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values corrected so that the probability of one wrong `p < level` among all of them is below `level`."""
    order = np.argsort(p, kind="stable")
    stepped = np.asarray(p)[order] * np.arange(len(p), 0, -1)
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(stepped))
    return corrected.tolist()


def _difference(one: Sample, other: Sample) -> Estimate:
    same = one.seeds == other.seeds and "" not in one.seeds
    return difference(one.y_Sn, other.y_Sn, same_seeds=same)


def _corrected(estimate: Estimate, p: float) -> Difference:
    low, high = estimate.interval()
    return Difference(value=estimate.value, low=low, high=high, p=p, over_seeds=estimate.seeds is not None)
