"""Pooling coefficients over the ranks of values or the places of elements, as curves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from polypool.aggregators.observe import Watched

_PERCENTILES = (10, 90)
_OFF_ONE = 1e-2  # tolerance of the sum of weights, which may be bfloat16


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Weights of the N positions of sets of one size, over sets and, if these have weights of their own, channels.

    Attributes:
        size: N.
        sets: number of sets.
        embedding: index among the K vectors; None if weights are not over embeddings.
        mean_N, low_N, high_N: the mean, the 10th and the 90th percentile.
        channels: whether channels have weights of their own.
        sums_to_one: whether the weights of every set do.
    """

    size: int
    sets: int
    embedding: int | None
    mean_N: np.ndarray
    low_N: np.ndarray
    high_N: np.ndarray
    channels: bool
    sums_to_one: bool


def curves_of(watched: Watched) -> list[Curve]:
    """Return the curves of an aggregator: of up to three sizes, or of each embedding for the most frequent size.

    Empty if it has no weights, or no set was seen.

    Raises:
        InputError: the weights do not fit `weights_over`, or are not finite.
    """
    over = watched.aggregator.weights_over
    sizes = [seen.size for seen in watched.seen]
    curves: list[Curve] = []
    for size in [most_frequent(sizes)] if over == "embeddings" and sizes else typical(sizes):
        weight_SKND = watched.weights(*(seen for seen in watched.seen if seen.size == size))
        if weight_SKND is None:
            return []
        curves += [
            _curve(weight_SKND[:, k].numpy(), embedding=k if over == "embeddings" else None)
            for k in range(weight_SKND.shape[1])
        ]
    return curves


def typical(sizes: Sequence[int]) -> list[int]:
    """Return the 10th, 50th and 90th percentile of sizes, without interpolation and duplicates."""
    if not sizes:
        return []
    chosen = np.percentile(sizes, (10, 50, 90), method="inverted_cdf")
    return [int(size) for size, _ in groupby(chosen)]


def most_frequent(sizes: Sequence[int]) -> int:
    """Return the most frequent size, the largest of several."""
    counts = Counter(sizes)
    return max(counts, key=lambda size: (counts[size], size))


def _curve(weight_SND: np.ndarray, *, embedding: int | None) -> Curve:
    apart_NS = np.moveaxis(weight_SND, 1, 0).reshape(weight_SND.shape[1], -1).copy()
    low_N, high_N = np.percentile(apart_NS, _PERCENTILES, axis=1, overwrite_input=True)
    return Curve(
        size=weight_SND.shape[1],
        sets=len(weight_SND),
        embedding=embedding,
        mean_N=weight_SND.mean(axis=(0, 2), dtype=np.float64),
        low_N=low_N,
        high_N=high_N,
        channels=weight_SND.shape[2] > 1,
        sums_to_one=bool(np.allclose(weight_SND.sum(axis=1), 1, atol=_OFF_ONE)),
    )
