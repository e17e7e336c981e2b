"""Mean and standard deviation per channel of the vectors of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from polypool.infra.process.progress import Progress
from polypool.infra.store.ids import IdSet
from polypool.infra.store.shard import MappedShard

_PIECE = 1 << 20  # numbers converted to float64 at a time


class Moments:
    """Accumulates in float64 by merging the moments of pieces, which is exact also for a mean far above the spread.

    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances",
    1979.

    Args:
        dim: number of channels D.

    Attributes:
        count: vectors that were added.
        mean: of each channel, `(D,)` float64.
    """

    def __init__(self, dim: int) -> None:
        self.count = 0
        self.mean = np.zeros(dim)
        self._squares = np.zeros(dim)  # sum of squared distances to the mean

    def add(self, x_ND: np.ndarray) -> None:
        """Add vectors of any float type."""
        rows = max(1, _PIECE // x_ND.shape[1])
        for start in range(0, len(x_ND), rows):
            piece_ND = x_ND[start : start + rows].astype(np.float64)
            count, mean, total = len(piece_ND), piece_ND.mean(axis=0), self.count + len(piece_ND)
            apart = mean - self.mean
            self._squares += ((piece_ND - mean) ** 2).sum(axis=0) + apart**2 * (self.count * count / total)
            self.mean += apart * (count / total)
            self.count = total

    @property
    def std(self) -> np.ndarray:
        """Standard deviation of each channel (divided by the count), `(D,)` float64."""
        return np.sqrt(self._squares / max(1, self.count))


def statistics(shards: Callable[[], Iterable[MappedShard]], *, wanted: IdSet, dim: int) -> dict[str, Any]:
    """Return `{"sets", "vectors", "mean", "std"}` over the sets whose id is one of those `wanted`.

    Args:
        shards: maps the shards, one after another; called twice, to keep none of them in memory.
        wanted: ids of the sets; ids that are not stored are ignored.
        dim: width of the vectors.
    """
    moments, sets = Moments(dim), 0
    chosen = [  # of each shard which sets, `(sets,)` bool
        np.fromiter((id in wanted for id in shard.names()), bool, len(shard.ids)) for shard in shards()
    ]
    for shard, chosen_S in zip(shards(), Progress(chosen, desc="statistics", unit="shard"), strict=True):
        for row in np.flatnonzero(chosen_S):
            moments.add(shard[row])
            sets += 1
    return {
        "sets": sets,
        "vectors": moments.count,
        "mean": moments.mean.tolist(),
        "std": moments.std.tolist(),
    }
