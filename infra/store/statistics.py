"""Mean and standard deviation a channel over vectors that come in pieces."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from infra.store.shard import MappedShard

_PIECE = 1 << 20  # numbers converted to float64 at a time
_CHUNK = 1 << 14  # ids converted to an array at a time


class Moments:
    """Accumulates in float64, merging the moments of pieces: a large mean does not drown a small spread.

    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances",
    1979.

    Args:
        dim: number of channels D.
    """

    def __init__(self, dim: int) -> None:
        self.count = 0
        self._mean = np.zeros(dim)
        self._squares = np.zeros(dim)  # sum of squared distances to the mean

    def add(self, x_ND: np.ndarray) -> None:
        """Take in vectors of any float type."""
        rows = max(1, _PIECE // x_ND.shape[1])
        for start in range(0, len(x_ND), rows):
            self._merge(x_ND[start : start + rows].astype(np.float64))

    def _merge(self, x_ND: np.ndarray) -> None:
        mean, total = x_ND.mean(axis=0), self.count + len(x_ND)
        apart = mean - self._mean
        self._squares += ((x_ND - mean) ** 2).sum(axis=0) + apart**2 * (self.count * len(x_ND) / total)
        self._mean += apart * (len(x_ND) / total)
        self.count = total

    @property
    def mean(self) -> np.ndarray:
        """Mean of each channel, `(D,)` float64."""
        return self._mean.copy()

    @property
    def std(self) -> np.ndarray:
        """Standard deviation of each channel (divided by the count), `(D,)` float64."""
        return np.sqrt(self._squares / max(1, self.count))


def _compact(ids: Iterable[str]) -> pa.Array:
    """Return ids as an array, without ever holding them all as objects of Python, which take three times as much."""
    ids, chunks = iter(ids), []
    while chunk := [*islice(ids, _CHUNK)]:
        chunks.append(pa.array(chunk, pa.string()))
    return pa.chunked_array(chunks, pa.string()).combine_chunks()


def statistics(shards: Iterable[MappedShard], *, ids: Iterable[str], dim: int) -> dict[str, Any]:
    """Return `{"sets", "vectors", "mean", "std"}` over the sets in `shards` whose id is one of `ids`."""
    wanted, moments, sets = _compact(ids), Moments(dim), 0
    for shard in shards:
        rows = np.flatnonzero(pc.is_in(shard.ids, value_set=wanted).to_numpy(zero_copy_only=False))
        for row in rows.tolist():
            moments.add(shard[row])
        sets += len(rows)
    return {
        "sets": sets,
        "vectors": moments.count,
        "mean": moments.mean.tolist(),
        "std": moments.std.tolist(),
    }
