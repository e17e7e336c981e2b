"""What similarities of sets share: all cosines of two sets' elements, combined to one score."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from infra.errors import InputError
from tasks.similarities.base import Similarity
from tasks.similarities.blocks import in_blocks


class SetSimilarity(Similarity):
    """`(Q, K, D)` against `(G, L, D)`; an embedding `(Q, D)` is a set of one."""

    of_sets = True
    factor: float = 1.0
    """What multiplies the cosines before they are combined; within the product it costs nothing."""

    @abstractmethod
    def combine(self, scaled_QKLG: Tensor) -> Tensor:
        """Return the `(Q, G)` scores of sets whose elements have these scaled cosines, which it may overwrite."""

    def forward(self, query: Tensor, gallery: Tensor) -> Tensor:
        """Return the `(Q, G)` scores, computed block by block; so is the gradient."""
        learned = [parameter for parameter in self.parameters() if parameter.requires_grad]

        def combine(scaled_QKLG: Tensor, rows: slice, columns: slice) -> Tensor:
            return self.combine(scaled_QKLG)

        return in_blocks(combine, *as_sets(query, gallery), learned, factor=self.factor)

    def pairs(self, query: Tensor, gallery: Tensor) -> Tensor:
        """Return the `(P,)` scores of the p-th set against the p-th."""
        query_PKD, gallery_PLD = as_sets(query, gallery)
        return self.combine((self.factor * query_PKD @ gallery_PLD.mT)[..., None]).squeeze(1)


def as_sets(query: Tensor, gallery: Tensor) -> tuple[Tensor, Tensor]:
    """Return embeddings as `(Q, K, D)` and `(G, L, D)`.

    Raises:
        InputError: they are neither vectors nor sets of them, or differ in width.
    """
    for embedding in (query, gallery):
        if embedding.ndim not in (2, 3):
            raise InputError(
                f"embeddings are (B, D), or (B, K, D) where they are sets, not {tuple(embedding.shape)}; check the "
                "aggregator"
            )
    if query.shape[-1] != gallery.shape[-1]:
        raise InputError(
            f"embeddings of width {query.shape[-1]} and {gallery.shape[-1]} cannot be compared; give both branches one "
            "width"
        )
    return tuple(embedding if embedding.ndim == 3 else embedding[:, None] for embedding in (query, gallery))
