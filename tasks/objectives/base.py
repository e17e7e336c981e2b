"""What a retrieval objective sees: a score matrix, and which of its entries belong together."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn


class Objective(nn.Module, ABC):
    """`(sim_QG, row_G, positive_QG)` -> scalars, on the global batch."""

    @abstractmethod
    def forward(
        self, sim_QG: Tensor, row_G: Tensor, positive_QG: Tensor, *, epoch: float
    ) -> dict[str, Tensor]:
        """Return scalars: `loss` is minimised, every other entry is logged.

        Args:
            sim_QG: scores of every visual embedding against every text embedding.
            row_G: the row that each column is paired with in this batch.
            positive_QG: True where a row and a column belong together; such an entry is never a negative.
            epoch: epochs trained so far, as a fraction.
        """


def batch_positives(item_V: Tensor, row_T: Tensor) -> Tensor:
    """Return which rows and columns of a batch's score matrix belong together, `(V, T)`, True where they do.

    All captions of an item belong to every row that shows it, and so does a caption that is drawn with another row of
    the same item: they are never negatives of each other.

    Args:
        item_V: the number of each row's item in its split.
        row_T: the row that each column was drawn with.
    """
    return item_V[:, None] == item_V[row_T][None, :]


def pairs_and_negatives(sim_QG: Tensor, row_G: Tensor, positive_QG: Tensor) -> tuple[Tensor, Tensor]:
    """Split the scores by the batch's pairs.

    Returns:
        Each column's score with its own row `(G,)`, and the negatives `(Q, G)`, in which positives have become the
        dtype's lowest number. That counts for nothing in maxima, hinges and exponentials, as -inf does, but where a
        batch has no negatives at all it leaves gradients zero and not NaN.
    """
    pair_G = sim_QG.gather(0, row_G[None]).squeeze(0)
    return pair_G, sim_QG.masked_fill(positive_QG, lowest(sim_QG))


def lowest(x: Tensor) -> float:
    """Return the lowest finite number of a tensor's dtype."""
    return torch.finfo(x.dtype).min
