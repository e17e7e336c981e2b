"""The hinge triplet loss with hard negatives (VSE++, equations 5 and 6; VSE-infinity's code)."""

from __future__ import annotations

from torch import Tensor

from infra.registry import OBJECTIVES
from tasks.objectives.base import Objective, negatives


@OBJECTIVES.register("triplet")
class Triplet(Objective):
    """`max(0, margin + negative - positive)` for every pair and both directions.

    All negatives count in the first epochs, the hardest of each row and column after. With the hardest
    negatives alone, training from the start often collapses: every score is equal and the summed loss
    stays at 2 * batch * margin.

    Args:
        margin: how far a negative must stay below the positive.
        warmup_epochs: for how many epochs all negatives count.
        reduction: `sum` over the batch (VSE++, VSE-infinity) or `mean` (HGR, PVSE, DivE).
    """

    def __init__(self, *, margin: float = 0.2, warmup_epochs: float = 1, reduction: str = "sum") -> None:
        super().__init__()
        if reduction not in ("sum", "mean"):
            raise ValueError(f"reduction must be 'sum' or 'mean', not {reduction!r}")
        self.margin, self.warmup_epochs, self.reduction = margin, warmup_epochs, reduction

    def forward(self, sim_QG: Tensor, row_G: Tensor, positive_QG: Tensor, *, epoch: float) -> Tensor:
        """Return the loss; see `Objective`."""
        pair_G, column_QG, row_GG = negatives(sim_QG, row_G, positive_QG)
        to_text = (self.margin + row_GG - pair_G[:, None]).clamp(min=0)
        to_visual = (self.margin + column_QG - pair_G[None, :]).clamp(min=0)
        if epoch < self.warmup_epochs:
            cost_G = to_text.sum(dim=1) + to_visual.sum(dim=0)
        else:
            cost_G = to_text.max(dim=1).values + to_visual.max(dim=0).values
        return cost_G.sum() if self.reduction == "sum" else cost_G.mean()
