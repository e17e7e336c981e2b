"""Every negative of the batch."""

from __future__ import annotations

from polypool.infra.registry import MINERS
from polypool.tasks.objectives.miners.miner import BatchScores, Chosen, Mined, Miner


@MINERS.register("all")
class All(Miner):
    """All negatives count."""

    def choose(self, scores: BatchScores) -> Mined:
        return Mined(
            to_text=Chosen(scores.negative_VT, of_T=scores.row_T), to_visual=Chosen(scores.negative_VT.T)
        )
