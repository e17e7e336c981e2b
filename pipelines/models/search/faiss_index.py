"""Single vectors by faiss."""

from __future__ import annotations

from math import isqrt

import numpy as np
import torch
from torch import Tensor

from polypool.infra.extras import needed
from polypool.pipelines.models.search.indices import AT, TopK, check_finite

SMALL = 20_000  # up to so many vectors, faiss looks at all
RECALL = 0.999


class Faiss:
    """Inner products by faiss: exact for small galleries, else by clusters around means of the vectors.

    How many clusters are looked at is measured on a sample of queries: as many as give a recall of 0.999 of the exact
    `at` best.

    Args:
        embedding_GD: the gallery's embeddings, of unit length.
        sample_SD: queries like those to come.
        at: how many of the best are looked for.
        small: galleries up to this size are searched exactly.

    Raises:
        InputError: faiss is not installed.
    """

    def __init__(self, embedding_GD: Tensor, sample_SD: Tensor, *, at: int = AT, small: int = SMALL) -> None:
        with needed("faiss", otherwise="choose --index exact"):
            import faiss
        self.at, vectors_GD = min(at, len(embedding_GD)), _plain(embedding_GD)
        whole = faiss.IndexFlatIP(vectors_GD.shape[1])
        if len(vectors_GD) <= small:
            whole.add(vectors_GD)
            self.index, self.clusters, self.recall = whole, 0, 1.0
            return
        clusters = 4 * isqrt(len(vectors_GD))
        self.index = faiss.IndexIVFFlat(whole, vectors_GD.shape[1], clusters, faiss.METRIC_INNER_PRODUCT)
        self.index.train(vectors_GD[:: max(1, len(vectors_GD) // (50 * clusters))])
        self.index.add(vectors_GD)
        self.clusters, self.recall = self._widen(_plain(sample_SD), clusters)

    @property
    def about(self) -> str:
        """What was measured."""
        looked = f"{self.clusters:,} of {self.index.nlist:,} clusters of" if self.clusters else "all"
        found = f"recall@{self.at} {self.recall:.3f} of the exact search"
        return f"{looked} {self.index.ntotal:,} vectors by faiss; {found}"

    def _widen(self, sample_SD: np.ndarray, clusters: int) -> tuple[int, float]:
        """Look at more clusters until the recall is high enough; return how many, and the recall."""
        exact_SK = self._places(sample_SD, clusters)
        looked = 4
        while True:
            looked = min(2 * looked, clusters)
            place_SK = self._places(sample_SD, looked)
            shared = sum(len(set(a) & set(b)) for a, b in zip(place_SK, exact_SK, strict=True))
            recall = shared / exact_SK.size
            if recall >= RECALL:
                return looked, recall

    def _places(self, query_SD: np.ndarray, clusters: int) -> np.ndarray:
        self.index.nprobe = clusters
        return self.index.search(query_SD, self.at)[1]

    def top(self, queries: Tensor, k: int) -> list[TopK]:
        """Return the k best for each query of `(Q, D)`.

        Raises:
            InputError: a query's embedding holds NaN.
        """
        check_finite(queries, "an embedding that is not a number")
        return [self._top(query, k) for query in queries.split(1)]

    def _top(self, query: Tensor, k: int) -> TopK:
        k = min(k, self.index.ntotal)
        score_K, place_K = self._search(query, k)
        if self.clusters and (place_K < 0).any():  # the clusters that are looked at hold fewer than k
            self.index.nprobe = self.index.nlist
            score_K, place_K = self._search(query, k)
            self.index.nprobe = self.clusters
        by_place_K = place_K.argsort()
        score_K, place_K = score_K[by_place_K], place_K[by_place_K]
        order_K = score_K.argsort(descending=True, stable=True)
        return TopK(place_K[order_K], score_K[order_K])

    def _search(self, query: Tensor, k: int) -> tuple[Tensor, Tensor]:
        score_1K, place_1K = self.index.search(_plain(query), k)
        return torch.from_numpy(score_1K[0]), torch.from_numpy(place_1K[0])


def _plain(embedding: Tensor) -> np.ndarray:
    return np.ascontiguousarray(embedding.float().cpu().numpy())
