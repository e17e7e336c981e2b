"""Every embedding of a gallery against a query, a part at a time: exact, whatever the similarity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from pipelines.searching.best import Best, best_of_parts

NUMBERS = 1 << 24  # of a part of the gallery: 64 MB

Score = Callable[[Tensor, Tensor], Tensor]
"""`score(gallery embeddings, query embedding (1, ...)) -> (gallery embeddings,)`."""


class Index(Protocol):
    """What finds a gallery's best embeddings."""

    def top(self, query: Tensor, k: int) -> Best:
        """Return the k best for one query, `(1, D)` or `(1, K, D)`."""


class Exact:
    """Scores everything.

    Args:
        embedding: of the gallery, `(G, D)` or `(G, K, D)`.
        score: scores a part of it.
    """

    def __init__(self, embedding: Tensor, score: Score) -> None:
        self.embedding, self.score = embedding, score

    @torch.inference_mode()
    def top(self, query: Tensor, k: int) -> Best:
        """Return the k best for one query."""
        return best_of_parts((self.score(part, query) for part in parts_of(self.embedding)), k)


def parts_of(embedding: Tensor) -> Iterator[Tensor]:
    """Cut a gallery's embeddings into parts of bounded memory."""
    return iter(embedding.split(max(1, NUMBERS // embedding[0].numel())))
