"""Results of the tests of a table's rows: which may be the best, and which differ.

All pairs are tested only on request, and corrected for their number by Holm, "A simple sequentially rejective multiple
test procedure", Scandinavian Journal of Statistics 6, 1979: of forty rows, 780 pairs leave little to be found.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from polypool.infra.errors import InputError
from polypool.pipelines.comparison.statistics.intervals import (
    Difference,
    Sample,
    Variance,
    borrowed_of,
    difference,
    of_runs,
    score,
)
from polypool.pipelines.comparison.statistics.power import Planning, planning
from polypool.pipelines.comparison.statistics.simultaneous import Joint, joint, with_baseline, with_best

LEAST = 10  # the fewest units for an interval


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Results of the tests of a group's rows.

    Attributes:
        units: of queries, such as `1,064 images with their captions`.
        labels: the rows that were compared, the best first.
        intervals: of each row's score, the ends of the 95 % interval.
        best: of each row, the difference from the best of the others, and p of its being the best; in results that
            were judged by pairs alone, of each other row the difference from the best.
        baseline: the row that others are compared with; empty for none.
        against: of each other row, the difference from that one, with simultaneous intervals and p.
        pairs: differences by two labels, each with its own interval, and p corrected by Holm; empty unless requested.
        tests: number of pairs that p-values are corrected for.
        by_pairs: whether pairs alone were judged, so that there is no confidence set.
        joint: the scores with their variances; None if the results were read from a file.
        planning: what other numbers of seeds would show; None where no row has two.
    """

    units: str
    labels: tuple[str, ...]
    intervals: Mapping[str, tuple[float, float]]
    best: Mapping[str, Difference] = field(default_factory=dict)
    baseline: str = ""
    against: Mapping[str, Difference] = field(default_factory=dict)
    pairs: Mapping[tuple[str, str], Difference] = field(default_factory=dict)
    tests: int = 0
    by_pairs: bool = False
    joint: Joint | None = None
    planning: Planning | None = None

    @property
    def compared(self) -> bool:
        """Whether there are rows to compare."""
        return len(self.labels) > 1

    @property
    def confidence_set(self) -> tuple[str, ...]:
        """The rows that may be the best, which holds the best one with a probability of 95 %."""
        labels = () if self.by_pairs else self.labels
        return tuple(label for label in labels if label in self.best and not self.best[label].found)


def judge(
    samples: Mapping[str, Sample],
    *,
    units: str,
    sign: int = 1,
    best: float = math.nan,
    baseline: str = "",
    pairs: bool = False,
) -> Judged:
    """Compare the rows of a table; of a single row return the interval alone.

    Args:
        samples: by label, the best first; all of the same units.
        units: what these are, in words.
        sign: 1 where higher scores are better, else -1.
        best: the best possible score; NaN if there is none.
        baseline: a row to compare the others with; not compared if it is no sample.
        pairs: test all pairs.

    Raises:
        InputError: too few units.
    """
    size = next(iter(samples.values())).y_Sn.shape[1]
    if size < LEAST:
        raise InputError(f"{size} queries are too few to judge differences by, at least {LEAST} are needed")
    if len(samples) < 2:
        return Judged(
            units=units,
            labels=tuple(samples),
            intervals={label: score(row).interval(best=best) for label, row in samples.items()},
        )
    of_all = joint(samples)
    borrowed = borrowed_of(of_runs(row.y_Sn) for row in samples.values())
    known = baseline if baseline in samples else ""
    tested = _pairs(samples, borrowed) if pairs else {}
    return Judged(
        units=units,
        labels=tuple(samples),
        intervals={
            label: score(row, borrowed=borrowed).interval(best=best) for label, row in samples.items()
        },
        best=with_best(of_all, sign=sign),
        baseline=known,
        against=with_baseline(of_all, known) if known else {},
        pairs=tested,
        tests=len(tested),
        joint=of_all,
        planning=planning(
            [sample.y_Sn for sample in samples.values()],
            queries=of_all.queries_RR[np.triu_indices(len(samples), 1)].tolist(),
        ),
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
    """Return p-values corrected so that the probability of one wrong `p < level` among all of them is below `level`."""
    order = np.argsort(p, kind="stable")
    stepped = np.asarray(p)[order] * np.arange(len(p), 0, -1)
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(stepped))
    return corrected.tolist()
