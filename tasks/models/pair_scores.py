"""Scores of a split by a model that looks at every pair: of blocks, or of single pairs, each computed once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from infra.compute.dist import gather_uneven, rank, world
from tasks.models.padded_sets import PaddedSets

if TYPE_CHECKING:
    from tasks.models.pair_encoder import PairEncoder

IMAGES, CAPTIONS = 64, 128
"""Images and captions that a split's scores are computed for at once; captions of equal length come together."""
PAIRS = 1024
"""Single pairs whose sets are put side by side at once."""


class PairScores:
    """Scores of a split, of any block or of single pairs; each is computed once, but for what a block repeats.

    Every worker must ask for the same.

    Args:
        model: scores every image with every caption of two padded sets, or the p-th with the p-th.
        visual: the sets of the images or videos, `(N, D)` each.
        text: the sets of the captions.
    """

    def __init__(self, model: PairEncoder, *, visual: Sequence[Tensor], text: Sequence[Tensor]) -> None:
        self.model, self.visual, self.text = model, visual, text
        shape, device = (len(visual), len(text)), visual[0].device
        self.sim_VT = torch.zeros(shape, device=device)
        self.known_VT = torch.zeros(shape, dtype=torch.bool, device=device)

    def __call__(self, images: slice, captions: slice) -> Tensor:
        """Return the scores of images against captions, `(V, T)`, float32."""
        row_V, column_T = np.arange(len(self.visual))[images], np.arange(len(self.text))[captions]
        return self._block((images, captions), row_V, column_T)

    def of_all(self, row_V: np.ndarray, column_T: np.ndarray) -> Tensor:
        """Return the scores of some images against some captions, `(V, T)`, float32."""
        return self._block(np.ix_(row_V, column_T), row_V, column_T)

    @torch.inference_mode()
    def of_pairs(self, row_P: np.ndarray, column_P: np.ndarray) -> Tensor:
        """Return the scores of the p-th image with the p-th caption, `(P,)`, float32."""
        new_P = (~self.known_VT[row_P, column_P]).nonzero().squeeze(1).cpu().numpy()
        if len(new_P):
            by_size_P = new_P[
                np.argsort([len(self.text[column]) for column in column_P[new_P]], kind="stable")
            ]
            own_P = np.array_split(by_size_P, world())[rank()]
            scores = [
                self.model.score_pairs(
                    PaddedSets.pad([self.visual[row] for row in row_P[part_P]]),
                    PaddedSets.pad([self.text[column] for column in column_P[part_P]]),
                ).float()
                for part_P in np.split(own_P, range(PAIRS, len(own_P), PAIRS))
                if len(part_P)
            ]
            sim_P = torch.cat([self.sim_VT.new_empty(0), *scores])
            self.sim_VT[row_P[by_size_P], column_P[by_size_P]] = gather_uneven(sim_P)
            self.known_VT[row_P[by_size_P], column_P[by_size_P]] = True
        return self.sim_VT[row_P, column_P]

    @torch.inference_mode()
    def _block(self, block: tuple, row_V: np.ndarray, column_T: np.ndarray) -> Tensor:
        if not self.known_VT[block].all():
            own_V = np.array_split(row_V, world())[rank()]
            self.sim_VT[block] = gather_uneven(self._compute(own_V, column_T))
            self.known_VT[block] = True
        return self.sim_VT[block]

    def _compute(self, row_V: np.ndarray, column_T: np.ndarray) -> Tensor:
        sim_VT = self.sim_VT.new_empty(len(row_V), len(column_T))
        by_size_T = np.argsort([len(self.text[column]) for column in column_T], kind="stable")
        starts = range(0, len(row_V), IMAGES)
        for start in tqdm(starts, desc="scoring pairs", leave=False, delay=2, disable=rank() > 0):
            part = slice(start, start + IMAGES)
            visual = PaddedSets.pad([self.visual[row] for row in row_V[part]])
            for first in range(0, len(column_T), CAPTIONS):
                place_T = by_size_T[first : first + CAPTIONS]
                text = PaddedSets.pad([self.text[column] for column in column_T[place_T]])
                sim_VT[part, torch.from_numpy(place_T)] = self.model.score(visual, text).float()
        return sim_VT
