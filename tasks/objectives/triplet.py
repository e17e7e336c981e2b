"""The hinge triplet loss: with the hardest negatives (VSE++, equations 5 and 6), with all, or with semi-hard ones."""

from __future__ import annotations

from torch import Tensor

from infra.errors import InputError
from infra.registry import OBJECTIVES
from tasks.objectives.base import Objective, lowest, pairs_and_negatives


@OBJECTIVES.register("triplet")
class Triplet(Objective):
    """`max(0, margin + negative - positive)` for every pair and both directions.

    Captions of one item and items that are drawn twice are never negatives of each other; the published codes know the
    diagonal alone.

    All negatives count in the first epochs, those that were chosen after. With the hardest negatives alone, training
    from the start often collapses: every score is equal and the summed loss stays at 2 * batch * margin.

    Args:
        margin: how far a negative must stay below the positive.
        negatives: `hard`, the highest of each row and column; `all`; or `semi_hard`, the highest that is still below
            the positive (FaceNet, Schroff et al. 2015), which costs nothing unless it is within the margin. Where
            every negative reaches the positive, the lowest of them takes its place.
        warmup_epochs: for how many epochs all negatives count.
        reduction: `sum` (VSE++, VSE-infinity), or `mean` (HGR, PVSE, DivE) over the hinges of each direction: over
            the pairs of the batch, or over all of a positive and a negative where all negatives count.
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
        if not margin >= 0:
            raise InputError(f"margin must be 0 or more, not {margin}")
        if not warmup_epochs >= 0:
            raise InputError(f"warmup_epochs must be 0 or more, not {warmup_epochs}")
        if negatives not in ("hard", "all", "semi_hard"):
            raise InputError(f"negatives must be 'hard', 'all' or 'semi_hard', not {negatives!r}")
        if reduction not in ("sum", "mean"):
            raise InputError(f"reduction must be 'sum' or 'mean', not {reduction!r}")
        self.margin, self.negatives = margin, negatives
        self.warmup_epochs, self.reduction = warmup_epochs, reduction

    def forward(
        self, sim_VT: Tensor, row_T: Tensor, positive_VT: Tensor, *, epoch: float
    ) -> dict[str, Tensor]:
        """Return the loss; see `Objective`."""
        pair_T, negative_VT = pairs_and_negatives(sim_VT, row_T, positive_VT)
        which = "all" if epoch < self.warmup_epochs else self.negatives
        sides = (
            negative_VT[row_T],
            negative_VT.T,
        )  # for each pair: other texts of its row, other rows of its text
        return {"loss": sum(self._cost(pair_T, negative_TN, which) for negative_TN in sides)}

    def _cost(self, pair_T: Tensor, negative_TN: Tensor, which: str) -> Tensor:
        """Return the reduced hinges of one direction."""
        if which == "all":
            hinge_TN = (self.margin + negative_TN - pair_T[:, None]).clamp(min=0)
            count = (negative_TN > lowest(negative_TN)).sum().clamp(min=1) if self.reduction == "mean" else 1
            return hinge_TN.sum() / count
        hardest_T = negative_TN.max(dim=1).values if which == "hard" else _semi_hard(pair_T, negative_TN)
        hinge_T = (self.margin + hardest_T - pair_T).clamp(min=0)
        return hinge_T.sum() if self.reduction == "sum" else hinge_T.mean()


def _semi_hard(pair_T: Tensor, negative_TN: Tensor) -> Tensor:
    """Return the highest negative below each positive; where there is none, the lowest negative."""
    none = lowest(negative_TN)
    below_T = negative_TN.masked_fill(negative_TN >= pair_T[:, None], none).max(dim=1).values
    easiest_T = negative_TN.masked_fill(negative_TN == none, -none).min(dim=1).values
    easiest_T = easiest_T.masked_fill(easiest_T == -none, none)
    return easiest_T.where(below_T == none, below_T)
