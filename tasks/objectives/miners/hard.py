"""The hardest negatives (VSE++, Faghri et al., BMVC 2018, equation 6)."""

from __future__ import annotations

from torch import Tensor

from polypool.infra.errors import InputError
from polypool.infra.registry import MINERS
from polypool.tasks.objectives.miners.miner import BatchScores, Chosen, Mined, Miner


@MINERS.register("hard")
class Hard(Miner):
    """The highest negatives of each row and column.

    Args:
        k: how many of them; all, where there are fewer.
    """

    def __init__(self, *, k: int = 1) -> None:
        if k < 1:
            raise InputError(f"k must be at least 1, not {k}")
        self.k = k

    def choose(self, scores: BatchScores) -> Mined:
        return Mined(
            to_text=Chosen(self._highest(scores.negative_VT), of_T=scores.row_T),
            to_visual=Chosen(self._highest(scores.negative_VT.T)),
        )

    def _highest(self, negative_RN: Tensor) -> Tensor:
        if self.k == 1:
            return negative_RN.max(dim=1, keepdim=True).values
        return negative_RN.topk(min(self.k, negative_RN.shape[1]), dim=1).values
