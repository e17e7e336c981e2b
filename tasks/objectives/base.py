"""What a retrieval objective sees: a score matrix, and which of its entries belong together."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn


class Objective(nn.Module, ABC):
    """`(sim_QG, row_G, positive_QG)` -> scalar loss, on the global batch."""

    @abstractmethod
    def forward(self, sim_QG: Tensor, row_G: Tensor, positive_QG: Tensor, *, epoch: float) -> Tensor:
        """Return the loss.

        Args:
            sim_QG: scores of every visual code against every text code.
            row_G: the row that each column is paired with in this batch.
            positive_QG: True where a row and a column belong together; such an entry is never a negative.
            epoch: epochs trained so far, as a fraction.
        """


def negatives(sim_QG: Tensor, row_G: Tensor, positive_QG: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split the scores by the batch's pairs.

    Returns:
        Each column's score with its own row `(G,)`; the negatives of each column `(Q, G)`; and the negatives
        of each column's row `(G, G)`. Positives are -inf among the negatives.
    """
    pair_G = sim_QG.gather(0, row_G[None]).squeeze(0)
    negative_QG = sim_QG.masked_fill(positive_QG, float("-inf"))
    return pair_G, negative_QG, negative_QG[row_G]
