"""The hardest of the negatives that are still below the positive (FaceNet, Schroff et al., CVPR 2015)."""

from __future__ import annotations

from torch import Tensor

from polypool.infra.registry import MINERS
from polypool.tasks.objectives.miners.miner import BatchScores, Chosen, Mined, Miner
from polypool.tasks.objectives.objective import lowest


@MINERS.register("semi_hard")
class SemiHard(Miner):
    """The highest negative below each positive; where every negative reaches the positive, the lowest of them."""

    def choose(self, scores: BatchScores) -> Mined:
        negative_VT, pair_T = scores.negative_VT, scores.pair_T
        return Mined(
            to_text=Chosen(_semi_hard(pair_T, negative_VT[scores.row_T])[:, None]),
            to_visual=Chosen(_semi_hard(pair_T, negative_VT.T)[:, None]),
        )


def _semi_hard(pair_T: Tensor, negative_TN: Tensor) -> Tensor:
    none = lowest(negative_TN)
    below_T = negative_TN.masked_fill(negative_TN >= pair_T[:, None], none).max(dim=1).values
    easiest_T = negative_TN.masked_fill(negative_TN == none, -none).min(dim=1).values
    easiest_T = easiest_T.masked_fill(easiest_T == -none, none)
    return easiest_T.where(below_T == none, below_T)
