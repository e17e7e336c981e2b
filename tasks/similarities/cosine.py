"""The cosine of two vectors."""

from __future__ import annotations

from torch import Tensor

from polypool.infra.errors import InputError
from polypool.infra.registry import SIMILARITIES
from polypool.tasks.similarities.similarity import Similarity


@SIMILARITIES.register("cosine")
class Cosine(Similarity):
    """The product of vectors of unit length."""

    of_sets = False

    def forward(self, query: Tensor, gallery: Tensor) -> Tensor:
        _check(query, gallery)
        return query @ gallery.T

    def pairs(self, query: Tensor, gallery: Tensor) -> Tensor:
        _check(query, gallery)
        return (query * gallery).sum(dim=-1)


def _check(query: Tensor, gallery: Tensor) -> None:
    for embedding in (query, gallery):
        if embedding.ndim != 2:
            fitting = [name for name, kind in SIMILARITIES.usable() if kind.of_sets]
            raise InputError(
                f"cosine compares vectors (B, D), and an embedding is {tuple(embedding.shape)}; for sets of vectors "
                f"choose one of {', '.join(fitting)}"
            )
