"""Late interaction: every element with its closest in the other set, of sets of any sizes (FILIP, ColBERT)."""

from __future__ import annotations

from torch import Tensor

from polypool.infra.registry import SIMILARITIES
from polypool.tasks.similarities.sets import as_sets, in_blocks
from polypool.tasks.similarities.similarity import Similarity
from polypool.tasks.similarities.vectors import real_vectors


@SIMILARITIES.register("maxsim")
class MaxSim(Similarity):
    """The mean over elements of the cosine with the closest one in the other set, averaged over both directions.

    `chamfer` for sets of different sizes: zero vectors are no elements, so that a negative cosine never loses to one. A
    set without an element scores 0.

    Sources: Yao et al., "FILIP", ICLR 2022, equations 4 and 5, whose loss takes from images to texts the one direction
    and from texts to images the other, where here both have the mean of the two; Khattab and Zaharia, "ColBERT", SIGIR
    2020, equation 3, the sum of the query's direction alone. One direction would not be symmetric, and which side asks
    is not known here.
    """

    of_sets = True
    of_any_size = True

    def forward(self, query: Tensor, gallery: Tensor) -> Tensor:
        query_QKD, gallery_GLD = as_sets(query, gallery)
        real_QK, real_GL = real_vectors(query_QKD), real_vectors(gallery_GLD)

        def combine(cosine_QKLG: Tensor, rows: slice, columns: slice) -> Tensor:
            return _closest(cosine_QKLG, real_QK[rows, :, None], real_GL[columns].T[None])

        return in_blocks(combine, query_QKD, gallery_GLD, ())

    def pairs(self, query: Tensor, gallery: Tensor) -> Tensor:
        query_PKD, gallery_PLD = as_sets(query, gallery)
        real_PK1, real_PL1 = real_vectors(query_PKD)[..., None], real_vectors(gallery_PLD)[..., None]
        return _closest((query_PKD @ gallery_PLD.mT)[..., None], real_PK1, real_PL1).squeeze(1)


def _closest(cosine_QKLG: Tensor, real_QKg: Tensor, real_qLG: Tensor) -> Tensor:
    """Return the mean of both directions, `(Q, G)`; small letters are axes of one or of all.

    Args:
        cosine_QKLG: of all elements; overwritten.
        real_QKg: True for elements of the queries.
        real_qLG: True for elements of the gallery.
    """
    both_QKLG = real_QKg[:, :, None] & real_qLG[:, None]
    cosine_QKLG = cosine_QKLG.masked_fill_(~both_QKLG, float("-inf"))
    return (_mean(cosine_QKLG.amax(dim=2), real_QKg) + _mean(cosine_QKLG.amax(dim=1), real_qLG)) / 2


def _mean(largest: Tensor, real: Tensor) -> Tensor:
    """Return the mean along axis 1 over real elements that met one; 0 where there is none."""
    met = largest != float("-inf")
    return largest.where(met, 0.0).sum(dim=1) / real.sum(dim=1).clamp(min=1)
