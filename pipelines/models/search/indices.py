"""Indices: the k best of a gallery's embeddings for a query, exact, in two passes over sets of vectors, or by faiss.

Results do not depend on how the work is cut: equal scores come in the gallery's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isqrt
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from polypool.infra.errors import InputError
from polypool.infra.extras import needed
from polypool.tasks.similarities.vectors import mean_vector, real_vectors

NUMBERS = 1 << 24  # of a part of the gallery: 64 MB

PairScore = Callable[[Tensor, Tensor], Tensor]
"""`score(gallery embeddings (G, ...), query embeddings (Q, ...)) -> (G, Q)`."""


class TopK(NamedTuple):
    """Places in a gallery, the best first, and their scores; equal scores in the gallery's order."""

    place_K: Tensor
    score_K: Tensor


class Index(Protocol):
    """What finds a gallery's best embeddings."""

    def top(self, queries: Tensor, k: int) -> list[TopK]:
        """Return the k best for each query of `(Q, D)` or `(Q, K, D)`.

        Raises:
            InputError: a score is no number.
        """


def top_k(score_G: Tensor, k: int) -> TopK:
    """Return the k best of a gallery's scores, or all where it is smaller.

    Raises:
        InputError: a score is no number.
    """
    _check_finite(score_G, "scores that are not numbers")
    threshold = score_G.topk(min(k, len(score_G))).values[-1]
    place_C = (score_G >= threshold).nonzero().squeeze(1)
    place_K = place_C[score_G[place_C].argsort(descending=True, stable=True)[:k]]
    return TopK(place_K, score_G[place_K])


def _check_finite(x: Tensor, what: str) -> None:
    if not torch.isfinite(x).all():
        raise InputError(
            f"the model gives {what}; it has diverged, or the features of the query or of the gallery hold NaN"
        )


def top_k_of_parts(parts: Iterable[Tensor], k: int) -> TopK:
    """Return the k best of scores that come part by part, in the gallery's order; only the best so far are held."""
    place_K, score_K, start = torch.empty(0, dtype=torch.int64), torch.empty(0), 0
    for score_P in parts:
        score_P = score_P.float().cpu()
        place_C = torch.cat([place_K, torch.arange(start, start + len(score_P))])
        chosen, score_K = top_k(torch.cat([score_K, score_P]), k)
        place_K, start = place_C[chosen], start + len(score_P)
    return TopK(place_K, score_K)


def evenly(count: int, at_most: int) -> np.ndarray:
    """Return up to so many numbers below `count`, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, min(count, at_most)).round().astype(np.int64))


def parts_of(embedding: Tensor) -> Iterator[Tensor]:
    """Cut a gallery's embeddings into parts of bounded memory."""
    return iter(embedding.split(max(1, NUMBERS // embedding[0].numel())))


class Exact:
    """Scores every embedding, a part at a time, whatever the similarity.

    Args:
        embedding: of the gallery, `(G, D)` or `(G, K, D)`.
        score: scores a part of it.
    """

    def __init__(self, embedding: Tensor, score: PairScore) -> None:
        self.embedding, self.score = embedding, score

    @torch.inference_mode()
    def top(self, queries: Tensor, k: int) -> list[TopK]:
        """Return the k best for each query; all queries are scored with a part of the gallery at once."""
        score_PGQ = [self.score(part, queries).float().cpu() for part in parts_of(self.embedding)]
        return [top_k_of_parts((score_GQ[:, q] for score_GQ in score_PGQ), k) for q in range(len(queries))]


AT = 10  # the recall that counts is that of the ten best
MARGIN = 3  # times as many candidates as the hardest query of the sample needed
LEAST = 100  # candidates
VECTOR = "vector"
GUIDES: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda largest_GL: largest_GL.mean(dim=1),
    "largest": lambda largest_GL: largest_GL.amax(dim=1),
}


class TwoPass:
    """Sets of vectors: a cheaper score chooses candidates, and the similarity itself ranks them.

    What guides the choice is the product of the sets' mean vectors; or, for each element of the query, the largest
    product with one of a set's, of which a set has the mean, or the largest. How many of a guide's best must be
    candidates is measured: where the ten best by exact search rank among them, for a sample of queries. The guide with
    which a query costs least is taken.

    Args:
        embedding_GKD: the gallery's sets.
        score: the similarity itself.
        sample: queries, `(S, D)` or `(S, K, D)`, like those to come.
    """

    def __init__(self, embedding_GKD: Tensor, score: PairScore, sample: Tensor) -> None:
        self.embedding_GKD, self.score = embedding_GKD, score
        self.vector_GD = mean_vector(embedding_GKD)
        self.pad_GK1 = ~real_vectors(embedding_GKD)[..., None]
        depths = [self._depths(query[None]) for query in sample]
        candidates = {
            name: min(len(embedding_GKD), max(LEAST, MARGIN * max(depth[name] for depth in depths)))
            for name in (VECTOR, *GUIDES)
        }
        self.guide = min(candidates, key=lambda name: self._products(name, candidates[name], sample))
        self.candidates = candidates[self.guide]

    def _products(self, guide: str, candidates: int, sample: Tensor) -> int:
        """Return how many products of vectors a query costs."""
        of_a_set = self.embedding_GKD.shape[1] * sample[0].reshape(-1, sample.shape[-1]).shape[0]
        return len(self.vector_GD) * (1 if guide == VECTOR else of_a_set) + candidates * of_a_set

    def _first(self, guides: Sequence[str], query: Tensor) -> Iterator[dict[str, Tensor]]:
        """Yield the scores of the first pass by guides, part after part of the gallery."""
        vector_D, query_LD = mean_vector(query)[0], query.reshape(-1, query.shape[-1])
        start = 0
        for part_PKD in parts_of(self.embedding_GKD):
            rows = slice(start, start := start + len(part_PKD))
            score_P = {VECTOR: self.vector_GD[rows] @ vector_D} if VECTOR in guides else {}
            if elements := [guide for guide in guides if guide != VECTOR]:
                # no cosine is below -1, and so none loses to a vector that fills up a smaller set
                cosine_PKL = (part_PKD @ query_LD.T).masked_fill_(self.pad_GK1[rows], -1.0)
                largest_PL = cosine_PKL.amax(dim=1)
                score_P |= {guide: GUIDES[guide](largest_PL) for guide in elements}
            yield score_P

    @torch.inference_mode()
    def _depths(self, query: Tensor) -> dict[str, int]:
        """Return how many candidates hold the ten best of a query, by what guides their choice."""
        (best,) = Exact(self.embedding_GKD, self.score).top(query, AT)
        place_K = best.place_K.to(self.embedding_GKD.device)
        parts = [*self._first((VECTOR, *GUIDES), query)]
        first = {guide: torch.cat([part[guide] for part in parts]) for guide in parts[0]}
        return {guide: int((first_G >= first_G[place_K].min()).sum()) for guide, first_G in first.items()}

    def top(self, queries: Tensor, k: int) -> list[TopK]:
        """Return the k best for each query, as far as they are candidates."""
        return [self._top(query, k) for query in queries.split(1)]

    @torch.inference_mode()
    def _top(self, query: Tensor, k: int) -> TopK:
        count = self.candidates * -(-k // AT)
        first = top_k_of_parts((part[self.guide] for part in self._first([self.guide], query)), count)
        place_C = first.place_K.sort().values
        score_C1 = self.score(self.embedding_GKD[place_C.to(self.embedding_GKD.device)], query).float().cpu()
        chosen, score_K = top_k(score_C1.flatten(), k)
        return TopK(place_C[chosen], score_K)


SMALL = 20_000  # up to so many vectors, faiss looks at all
RECALL = 0.999


class Faiss:
    """Inner products by faiss: exact for small galleries, else by clusters around means of the vectors.

    How many clusters are looked at is measured on a sample of queries: as many as give a recall of 0.999 of the exact
    ten best.

    Args:
        embedding_GD: the gallery's embeddings, of unit length.
        sample_SD: queries like those to come.
        small: galleries up to this size are searched exactly.

    Raises:
        InputError: faiss is not installed.
    """

    def __init__(self, embedding_GD: Tensor, sample_SD: Tensor, *, small: int = SMALL) -> None:
        with needed("faiss", otherwise="choose --index exact"):
            import faiss
        vectors_GD = _plain(embedding_GD)
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
        return self.index.search(query_SD, AT)[1]

    def top(self, queries: Tensor, k: int) -> list[TopK]:
        """Return the k best for each query of `(Q, D)`.

        Raises:
            InputError: a query's embedding holds NaN.
        """
        _check_finite(queries, "an embedding that is not a number")
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
