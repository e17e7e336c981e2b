"""Scores of batches with repeated items or several captions per item, and a score function that counts requests."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from polypool.tasks.objectives.objective import batch_positives

# the item of each row, and the row of each caption; in the last batch all pairs are positives
BATCHES = {
    "pairs": ([5, 7, 2, 7, 9, 1], [0, 1, 2, 3, 4, 5]),
    "items": ([4, 1, 6, 8], [0, 0, 1, 2, 2, 2, 3, 3]),
    "one": ([3], [0, 0]),
}


def batch(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return float64 scores (-0.4 to 0.4, higher for the matches of `pairs`), rows of captions, and positives."""
    item_V, row_T = (torch.tensor(numbers) for numbers in BATCHES[name])
    size = len(item_V), len(row_T)
    sim_VT = 0.8 * torch.rand(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.4
    if name == "pairs":
        sim_VT += 0.3 * torch.eye(len(item_V))
    return sim_VT, row_T, batch_positives(item_V, row_T)


def pairs(size: int) -> tuple[Tensor, Tensor]:
    """Return the rows and the positives of a batch of pairs of distinct items."""
    row_T = torch.arange(size)
    return row_T, batch_positives(10 + row_T, row_T)


class CountedScore:
    """A score function that returns blocks of a matrix.

    Attributes:
        requests_VT: number of requests of each score.
        largest: numbers of rows and of columns of the largest block.
    """

    def __init__(self, sim_VT: Tensor) -> None:
        self.sim_VT, self.requests_VT, self.largest = sim_VT, np.zeros(sim_VT.shape, int), (0, 0)

    def __call__(self, rows: slice, columns: slice) -> Tensor:
        self.requests_VT[rows, columns] += 1
        block_VT = self.sim_VT[rows, columns]
        self.largest = tuple(map(max, self.largest, block_VT.shape))
        return block_VT
