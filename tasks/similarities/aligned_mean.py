"""The k-th element with the k-th (score attention with k queries, Stefanini et al. 2020)."""

from __future__ import annotations

from torch import Tensor

from polypool.infra.errors import InputError
from polypool.infra.registry import SIMILARITIES
from polypool.tasks.similarities.sets import as_sets
from polypool.tasks.similarities.similarity import Similarity


@SIMILARITIES.register("aligned_mean")
class AlignedMean(Similarity):
    """The mean of the cosines of elements at the same place; both sets have equally many."""

    of_sets = True

    def forward(self, query: Tensor, gallery: Tensor) -> Tensor:
        """Return the `(Q, G)` means: one product of the sets laid out as long vectors."""
        query_QKD, gallery_GKD = _aligned(query, gallery)
        return (query_QKD.flatten(1) @ gallery_GKD.flatten(1).T).div_(query_QKD.shape[1])

    def pairs(self, query: Tensor, gallery: Tensor) -> Tensor:
        query_PKD, gallery_PKD = _aligned(query, gallery)
        return (query_PKD * gallery_PKD).sum(dim=-1).mean(dim=1)


def _aligned(query: Tensor, gallery: Tensor) -> tuple[Tensor, Tensor]:
    sets = as_sets(query, gallery)
    k, l = (x.shape[1] for x in sets)  # noqa: E741
    if k != l:
        raise InputError(
            f"aligned_mean pairs the k-th element with the k-th, and sets have {k} elements on one side and {l} on the "
            "other; give both aggregators the same k, or choose smooth_chamfer, chamfer, mil or match_probability"
        )
    return sets
