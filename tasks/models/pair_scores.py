"""The scores of a split by a model that looks at every pair: computed once, over all workers, and kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from infra.dist import gather_uneven, rank, world
from tasks.models.sets import Sets

IMAGES, CAPTIONS = 64, 128  # of one call; captions of equal length come together


class PairScores:
    """Called with two slices, it returns a block of the score matrix; every worker must ask for the same blocks.

    Args:
        score: scores every image with every caption of what it is given.
        visual: the sets of the images or videos, `(N, D)` each.
        text: the sets of the captions.
    """

    def __init__(
        self, score: Callable[[Sets, Sets], Tensor], *, visual: Sequence[Tensor], text: Sequence[Tensor]
    ) -> None:
        self.score, self.visual, self.text = score, visual, text
        shape, device = (len(visual), len(text)), visual[0].device
        self.sim_QG = torch.zeros(shape, device=device)
        self.known_QG = torch.zeros(shape, dtype=torch.bool, device=device)

    @torch.inference_mode()
    def __call__(self, images: slice, captions: slice) -> Tensor:
        """Return the scores of images against captions, float32; scores that were asked for before are at hand."""
        block = images, captions
        if not self.known_QG[block].all():
            own = np.array_split(np.arange(len(self.visual))[images], world())[rank()]
            self.sim_QG[block] = gather_uneven(self._compute(own, np.arange(len(self.text))[captions]))
            self.known_QG[block] = True
        return self.sim_QG[block]

    def _compute(self, row_Q: np.ndarray, column_G: np.ndarray) -> Tensor:
        sim_QG = self.sim_QG.new_empty(len(row_Q), len(column_G))
        by_size_G = np.argsort([len(self.text[column]) for column in column_G], kind="stable")
        starts = range(0, len(row_Q), IMAGES)
        for start in tqdm(starts, desc="scoring pairs", leave=False, delay=2, disable=rank() > 0):
            part = slice(start, start + IMAGES)
            visual = Sets.pad([self.visual[row] for row in row_Q[part]])
            for first in range(0, len(column_G), CAPTIONS):
                place_G = by_size_G[first : first + CAPTIONS]
                text = Sets.pad([self.text[column] for column in column_G[place_G]])
                sim_QG[part, torch.from_numpy(place_G)] = self.score(visual, text).float()
        return sim_QG
