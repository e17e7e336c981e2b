"""Large galleries of single vectors through faiss, which looks at some cells of the gallery only."""

from __future__ import annotations

from math import isqrt

import numpy as np
import torch
from torch import Tensor

from infra.errors import InputError
from pipelines.searching.best import Best

SMALL = 20_000  # up to so many vectors, all are looked at
RECALL, AT = 0.999, 10


class Faiss:
    """Inner products by faiss: exact for small galleries, else by cells around means of the vectors.

    How many cells are looked at is measured on a sample of queries: as many as give a recall of 0.999 of the exact ten
    best.

    Args:
        embedding_GD: the gallery's embeddings, of unit length.
        sample_SD: queries of the kind that will be asked.
        small: galleries up to this size are searched exactly.

    Raises:
        InputError: faiss is not installed.
    """

    def __init__(self, embedding_GD: Tensor, sample_SD: Tensor, *, small: int = SMALL) -> None:
        try:
            import faiss
        except ImportError as error:
            raise InputError(
                "--index faiss needs faiss: `pip install faiss-cpu`; --index exact needs nothing"
            ) from error
        embedding_GD, sample_SD = (_plain(embedding) for embedding in (embedding_GD, sample_SD))
        whole = faiss.IndexFlatIP(embedding_GD.shape[1])
        if len(embedding_GD) <= small:
            whole.add(embedding_GD)
            self.index, self.cells, self.recall = whole, 0, 1.0
            return
        cells = 4 * isqrt(len(embedding_GD))
        self.index = faiss.IndexIVFFlat(whole, embedding_GD.shape[1], cells, faiss.METRIC_INNER_PRODUCT)
        self.index.train(embedding_GD[:: max(1, len(embedding_GD) // (50 * cells))])
        self.index.add(embedding_GD)
        self.cells, self.recall = self._widen(sample_SD, cells)

    def _widen(self, sample_SD: np.ndarray, cells: int) -> tuple[int, float]:
        """Look at more cells until the recall is high enough; return how many, and the recall."""
        exact_SK = self._places(sample_SD, cells)
        looked = 4
        while True:
            looked = min(2 * looked, cells)
            found_SK = self._places(sample_SD, looked)
            shared = sum(len(set(a) & set(b)) for a, b in zip(found_SK, exact_SK, strict=True))
            recall = shared / exact_SK.size
            if recall >= RECALL:
                return looked, recall

    def _places(self, query_SD: np.ndarray, cells: int) -> np.ndarray:
        self.index.nprobe = cells
        return self.index.search(query_SD, AT)[1]

    def top(self, query: Tensor, k: int) -> Best:
        """Return the k best for one query `(1, D)`.

        Raises:
            InputError: the query's embedding holds NaN.
        """
        if not torch.isfinite(query).all():
            raise InputError(
                "the model gives an embedding that is no number; it has diverged, or the query holds NaN"
            )
        k = min(k, self.index.ntotal)
        score_K, place_K = self._search(query, k)
        if self.cells and (place_K < 0).any():  # the cells that are looked at hold fewer than k
            self.index.nprobe = self.index.nlist
            score_K, place_K = self._search(query, k)
            self.index.nprobe = self.cells
        by_place_K = place_K.argsort()
        score_K, place_K = score_K[by_place_K], place_K[by_place_K]
        order_K = score_K.argsort(descending=True, stable=True)
        return Best(place_K[order_K], score_K[order_K])

    def _search(self, query: Tensor, k: int) -> tuple[Tensor, Tensor]:
        score_1K, place_1K = self.index.search(_plain(query), k)
        return torch.from_numpy(score_1K[0]), torch.from_numpy(place_1K[0])


def _plain(embedding: Tensor) -> np.ndarray:
    return np.ascontiguousarray(embedding.float().cpu().numpy())
