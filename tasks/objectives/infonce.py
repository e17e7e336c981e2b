"""InfoNCE over the batch, both directions (van den Oord et al. 2018; CLIP)."""

from __future__ import annotations

from torch import Tensor

from infra.registry import OBJECTIVES
from tasks.objectives.base import Objective, pairs_and_negatives


@OBJECTIVES.register("infonce")
class InfoNCE(Objective):
    """The cross-entropy of each pair against its negatives, averaged over the batch and the directions.

    Args:
        temperature: divides the scores.
    """

    def __init__(self, *, temperature: float = 0.05) -> None:
        super().__init__()
        if temperature <= 0:
            raise ValueError(f"temperature must be above 0, not {temperature}")
        self.temperature = temperature

    def forward(
        self, sim_QG: Tensor, row_G: Tensor, positive_QG: Tensor, *, epoch: float
    ) -> dict[str, Tensor]:
        """Return the loss; see `Objective`."""
        pair_G, negative_QG = pairs_and_negatives(sim_QG / self.temperature, row_G, positive_QG)
        to_text_G = pair_G.logaddexp(negative_QG.logsumexp(dim=1)[row_G]) - pair_G
        to_visual_G = pair_G.logaddexp(negative_QG.logsumexp(dim=0)) - pair_G
        return {"loss": (to_text_G + to_visual_G).mean() / 2}
