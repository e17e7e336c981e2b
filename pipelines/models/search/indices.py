"""The k best of a gallery's embeddings for a query, by exact search, and what all indices share.

Results do not depend on how the work is cut: equal scores come in the gallery's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from polypool.infra.errors import InputError

NUMBERS = 1 << 24  # of a part of the gallery: 64 MB

PairScore = Callable[[Tensor, Tensor], Tensor]
"""`score(gallery embeddings (G, ...), query embeddings (Q, ...)) -> (G, Q)`."""


class TopK(NamedTuple):
    """Places in a gallery, the best first, and their scores; equal scores in the gallery's order."""

    place_K: Tensor
    score_K: Tensor


class Index(Protocol):
    """What finds a gallery's best embeddings."""

    @property
    def about(self) -> str:
        """How, and what it was measured to find of the exact search; empty for that itself."""

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
    check_finite(score_G, "scores that are not numbers")
    threshold = score_G.topk(min(k, len(score_G))).values[-1]
    place_C = (score_G >= threshold).nonzero().squeeze(1)
    place_K = place_C[score_G[place_C].argsort(descending=True, stable=True)[:k]]
    return TopK(place_K, score_G[place_K])


def check_finite(x: Tensor, what: str) -> None:
    """Refuse embeddings that hold NaN or infinity."""
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

    about = ""

    def __init__(self, embedding: Tensor, score: PairScore) -> None:
        self.embedding, self.score = embedding, score

    @torch.inference_mode()
    def top(self, queries: Tensor, k: int) -> list[TopK]:
        """Return the k best for each query; all queries are scored with a part of the gallery at once."""
        score_PGQ = [self.score(part, queries).float().cpu() for part in parts_of(self.embedding)]
        return [top_k_of_parts((score_GQ[:, q] for score_GQ in score_PGQ), k) for q in range(len(queries))]


AT = 10  # the recall that counts is that of the ten best
