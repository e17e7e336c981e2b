"""Size augmentation of feature sets: training on sets of many sizes (VSE-infinity, section 3.3)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from polypool.infra.compute.randomness import uniform
from polypool.infra.registry import AUGMENTATIONS

Draw = Callable[..., np.ndarray]
"""`draw(sample_B, element_N, stream)` -> uniform numbers in [0, 1), broadcast over the coordinates."""


def draw_for(seed: int, epoch: int, modality: int) -> Draw:
    """Return the numbers of an epoch for one modality, which any worker can repeat."""

    def draw(sample: np.ndarray, element: np.ndarray, stream: int) -> np.ndarray:
        return uniform(seed, epoch, modality, stream, sample, element)

    return draw


@AUGMENTATIONS.register("drop")
class Drop:
    """Keep each element with probability 1 - p, and at least one: regions and frames.

    Args:
        p: the fraction of elements dropped.
    """

    def __init__(self, *, p: float = 0.2) -> None:
        if not 0 <= p < 1:
            raise ValueError(f"p must lie in [0, 1), not {p}")
        self.p = p

    def dropped(self, sample_B1: np.ndarray, draw: Draw) -> np.ndarray | float:
        """Return the probability that an element of each sample is dropped."""
        return self.p

    def __call__(self, size_B: np.ndarray, sample_B: np.ndarray, draw: Draw) -> list[np.ndarray]:
        """Return which elements stay, one bool array per sample.

        Args:
            size_B: the sets' sizes.
            sample_B: the samples' numbers in the data set.
            draw: see `Draw`.
        """
        sample_B1 = sample_B[:, None]
        u_BN = draw(sample_B1, np.arange(size_B.max()), 0)
        stay_BN = u_BN >= self.dropped(sample_B1, draw)
        for i in np.flatnonzero(~_any_real(stay_BN, size_B)):
            stay_BN[i, u_BN[i, : size_B[i]].argmax()] = True
        return [stay_N[:size] for stay_N, size in zip(stay_BN, size_B, strict=True)]


@AUGMENTATIONS.register("grid_drop")
class GridDrop(Drop):
    """The rule of the authors' code for grids: a number r is drawn for each image; nothing is dropped where
    r <= p, else each cell with probability p * r. With p = 0.2, 9.5 % of the cells go on average."""

    def dropped(self, sample_B1: np.ndarray, draw: Draw) -> np.ndarray:
        """Return the probability that a cell of each image is dropped."""
        r_B1 = draw(sample_B1, 0, 1)
        return np.where(r_B1 <= self.p, 0.0, self.p * r_B1)


def _any_real(stay_BN: np.ndarray, size_B: np.ndarray) -> np.ndarray:
    return (stay_BN & (np.arange(stay_BN.shape[1]) < size_B[:, None])).any(axis=1)
