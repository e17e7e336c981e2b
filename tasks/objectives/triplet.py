"""The hinge triplet loss: with the hardest negatives (VSE++, equations 5 and 6), with all, or with semi-hard ones."""

from __future__ import annotations

from torch import Tensor

from infra.errors import InputError
from infra.registry import OBJECTIVES
from tasks.objectives.base import Objective, lowest, pairs_and_negatives


@OBJECTIVES.register("triplet")
class Triplet(Objective):
    """`max(0, margin + negative - positive)` for every pair and both directions.

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
        if negatives not in ("hard", "all", "semi_hard"):
            raise InputError(f"negatives must be 'hard', 'all' or 'semi_hard', not {negatives!r}")
        if reduction not in ("sum", "mean"):
            raise InputError(f"reduction must be 'sum' or 'mean', not {reduction!r}")
        self.margin, self.negatives = margin, negatives
        self.warmup_epochs, self.reduction = warmup_epochs, reduction

    def forward(
        self, sim_QG: Tensor, row_G: Tensor, positive_QG: Tensor, *, epoch: float
    ) -> dict[str, Tensor]:
        """Return the loss; see `Objective`."""
        pair_G, negative_QG = pairs_and_negatives(sim_QG, row_G, positive_QG)
        which = "all" if epoch < self.warmup_epochs else self.negatives
        sides = (
            negative_QG[row_G],
            negative_QG.T,
        )  # for each pair: other texts of its row, other rows of its text
        return {"loss": sum(self._cost(pair_G, negative_GN, which) for negative_GN in sides)}

    def _cost(self, pair_G: Tensor, negative_GN: Tensor, which: str) -> Tensor:
        """Return the reduced hinges of one direction."""
        if which == "all":
            hinge_GN = (self.margin + negative_GN - pair_G[:, None]).clamp(min=0)
            count = (negative_GN > lowest(negative_GN)).sum().clamp(min=1) if self.reduction == "mean" else 1
            return hinge_GN.sum() / count
        hardest_G = negative_GN.max(dim=1).values if which == "hard" else _semi_hard(pair_G, negative_GN)
        hinge_G = (self.margin + hardest_G - pair_G).clamp(min=0)
        return hinge_G.sum() if self.reduction == "sum" else hinge_G.mean()


def _semi_hard(pair_G: Tensor, negative_GN: Tensor) -> Tensor:
    """Return the highest negative below each positive; where there is none, the lowest negative."""
    none = lowest(negative_GN)
    below_G = negative_GN.masked_fill(negative_GN >= pair_G[:, None], none).max(dim=1).values
    easiest_G = negative_GN.masked_fill(negative_GN == none, -none).min(dim=1).values
    easiest_G = easiest_G.masked_fill(easiest_G == -none, none)
    return easiest_G.where(below_G == none, below_G)
