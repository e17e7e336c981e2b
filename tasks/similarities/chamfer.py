"""Every element with its closest in the other set (DivE, section 3.3)."""

from __future__ import annotations

from torch import Tensor

from polypool.infra.registry import SIMILARITIES
from polypool.tasks.similarities.sets import SetSimilarity


@SIMILARITIES.register("chamfer")
class Chamfer(SetSimilarity):
    """The mean over elements of the cosine with the closest one in the other set, averaged over both directions."""

    def combine(self, cosine_QKLG: Tensor) -> Tensor:
        return (cosine_QKLG.amax(dim=2).mean(dim=1) + cosine_QKLG.amax(dim=1).mean(dim=1)) / 2
