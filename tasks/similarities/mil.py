"""The closest pair of elements: multiple instance learning (PVSE, Song and Soleymani 2019)."""

from __future__ import annotations

from torch import Tensor

from polypool.infra.registry import SIMILARITIES
from polypool.tasks.similarities.sets import SetSimilarity


@SIMILARITIES.register("mil")
class MIL(SetSimilarity):
    """The largest cosine of an element of one set with one of the other."""

    def combine(self, cosine_QKLG: Tensor) -> Tensor:
        return cosine_QKLG.amax(dim=2).amax(dim=1)
