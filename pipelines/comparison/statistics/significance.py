"""Which differences between aggregators are significant, by a paired bootstrap over the test queries.

The units of the test split are drawn anew with replacement, the same draw for all aggregators, and every score is
computed again. The 95 % interval of a difference is that of its percentiles; where it leaves 0 out, the difference is
called significant. What another seed would change is not in it: seeds are averaged before.

Source: Efron and Tibshirani, "An introduction to the bootstrap", 1993, chapter 13; Koehn, EMNLP 2004, for paired draws.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from infra.errors import InputError

RESAMPLES = 4000
LEAST = 10
"""Units without which an interval would say nothing."""
_AT_ONCE = 1 << 22  # draws held at a time


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A difference of two scores, and its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def significant(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low > 0 or self.high < 0

    def __neg__(self) -> Difference:
        return Difference(value=-self.value, low=-self.high, high=-self.low)


@dataclass(frozen=True, kw_only=True)
class Bootstrap:
    """The differences between the rows of a group.

    Attributes:
        units: what was drawn, such as `1,064 images with their captions`.
        labels: the rows that were compared, the best first.
        pairs: by two labels, the better one first: the score of the first without that of the second.
    """

    units: str
    labels: tuple[str, ...]
    pairs: Mapping[tuple[str, str], Difference]

    def difference(self, one: str, other: str) -> Difference | None:
        """Return the score of a row without that of another; None where one of them was not compared."""
        if (one, other) in self.pairs:
            return self.pairs[one, other]
        return -self.pairs[other, one] if (other, one) in self.pairs else None


def paired_bootstrap(
    sum_APn: np.ndarray,
    count_Pn: np.ndarray,
    *,
    labels: Sequence[str],
    units: str,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Bootstrap:
    """Compare scores that are sums of means: over its parts P, what queries score, by the number of queries.

    Args:
        sum_APn: what the queries of each of the n units score together, for each aggregator and part.
        count_Pn: how many queries of each part a unit has.
        labels: the aggregators, the best first.
        units: what is drawn, in words.
        resamples: how many draws of n units.
        seed: of the draws.

    Raises:
        InputError: too few units.
    """
    size = count_Pn.shape[1]
    if size < LEAST:
        raise InputError(f"{size} queries are too few to be drawn anew, at least {LEAST} are needed")
    whole_A = _scores(np.ones((1, size), np.float32), sum_APn, count_Pn)[0]
    draws = np.random.default_rng(seed)
    score_RA = np.concatenate(
        [_scores(weight, sum_APn, count_Pn) for weight in _weights(draws, size, resamples)]
    )
    pairs = {}
    for one, other in itertools.combinations(range(len(labels)), 2):
        low, high = np.quantile(score_RA[:, one] - score_RA[:, other], (0.025, 0.975)).tolist()
        value = float(whole_A[one] - whole_A[other])
        pairs[labels[one], labels[other]] = Difference(value=value, low=low, high=high)
    return Bootstrap(units=units, labels=tuple(labels), pairs=pairs)


def _weights(draws: np.random.Generator, size: int, resamples: int) -> Iterator[np.ndarray]:
    """Yield how often each unit is in each resample, some resamples at a time: `(r, n)`."""
    step = max(1, _AT_ONCE // size)
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        drawn = draws.integers(size, size=(rows, size), dtype=np.int64)
        drawn += np.arange(rows)[:, None] * size
        yield np.bincount(drawn.ravel(), minlength=rows * size).reshape(rows, size).astype(np.float32)


def _scores(weight_Rn: np.ndarray, sum_APn: np.ndarray, count_Pn: np.ndarray) -> np.ndarray:
    """Return the scores of resamples, `(R, A)`."""
    score_RA = np.zeros((len(weight_Rn), len(sum_APn)))
    for part, count_n in enumerate(count_Pn):
        total_RA = weight_Rn @ sum_APn[:, part].T.astype(np.float32)
        queries_R = weight_Rn @ count_n.astype(np.float32)
        score_RA += total_RA / np.maximum(queries_R, 1)[:, None]  # a part without queries adds nothing
    return score_RA
