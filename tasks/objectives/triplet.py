"""Hinge triplet loss over mined negatives (VSE++, equations 5 and 6)."""

from __future__ import annotations

from torch import Tensor

from polypool.infra.fields import at_least, one_of, require
from polypool.infra.registry import MINERS, OBJECTIVES
from polypool.tasks.objectives.miners import All, BatchScores, MinedNegatives
from polypool.tasks.objectives.objective import Objective, lowest


@OBJECTIVES.register("triplet")
class Triplet(Objective):
    """`max(0, margin + negative - positive)` for every pair and both directions.

    Captions of one item and duplicates of items are never negatives of each other; the published codes use only the
    diagonal as positives.

    All negatives are used in the first epochs, the mined ones afterwards. Training with the hardest negatives from the
    start often collapses: every score is equal and the summed loss stays at 2 * batch * margin.

    Args:
        margin: required distance of a negative below the positive.
        negatives: the miner: `hard`, the highest of each row and column; `all`; `adopt_k`; or `semi_hard`, the highest
            below the positive, which has no loss unless it is within the margin.
        warmup_epochs: number of epochs with all negatives.
        reduction: `sum` (VSE++, VSE-infinity), or `mean` (HGR, PVSE, DivE) over the hinges of each direction: over the
            pairs of the batch, or over all positive-negative combinations if several negatives are used.
    """

    def __init__(
        self,
        *,
        margin: float = 0.2,
        negatives: str = "hard",
        warmup_epochs: float = 1,
        reduction: str = "sum",
    ) -> None:
        super().__init__()
        require(at_least(0), margin=margin, warmup_epochs=warmup_epochs)
        require(one_of("sum", "mean"), reduction=reduction)
        self.margin = self.target_gap = margin
        self.miner, self.first = MINERS.build(negatives), All()
        self.warmup_epochs, self.reduction = warmup_epochs, reduction

    def forward(
        self, sim_VT: Tensor, row_T: Tensor, positive_VT: Tensor, *, epoch: float
    ) -> dict[str, Tensor]:
        scores = BatchScores.of(sim_VT, row_T, positive_VT, sim_VT=sim_VT)
        miner = self.first if epoch < self.warmup_epochs else self.miner
        mined = miner.choose(scores)
        of_text, of_visual = (
            self._cost(scores.pair_T, side.of_pairs()) for side in (mined.to_text, mined.to_visual)
        )
        return {"loss": of_text + of_visual, **mined.terms}

    def _cost(self, pair_T: Tensor, chosen: MinedNegatives) -> Tensor:
        """Return the reduced hinges of one direction."""
        score_TN, weight_TN, _ = chosen
        hinge_TN = (self.margin + score_TN - pair_T[:, None]).clamp(min=0)
        if weight_TN is not None:
            hinge_TN = hinge_TN * weight_TN
        if self.reduction == "sum":
            return hinge_TN.sum()
        if score_TN.shape[1] == 1:
            return hinge_TN.mean()
        real_TN = score_TN > lowest(score_TN)
        return hinge_TN.sum() / (real_TN if weight_TN is None else real_TN * weight_TN).sum().clamp(min=1)
