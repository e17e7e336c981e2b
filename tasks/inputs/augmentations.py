"""Random changes of sets and captions in training (VSE-infinity, section 3.3, and its code)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from polypool.infra.compute.randomness import uniform
from polypool.infra.registry import AUGMENTATIONS

# `draw(sample_B, element_N, stream)` -> uniform numbers in [0, 1), broadcast over the coordinates.
Draw = Callable[..., np.ndarray]


def draw_for(seed: int, epoch: int, modality: int) -> Draw:
    """Return the source of an epoch's random numbers for one modality; any worker can repeat them.

    Args:
        seed, epoch: of the run.
        modality: 0 for images and videos, 1 for texts.
    """

    def draw(sample: np.ndarray, element: np.ndarray, stream: int) -> np.ndarray:
        return uniform(seed, epoch, modality, stream, sample, element)

    return draw


@AUGMENTATIONS.register("drop")
class Drop:
    """Keep each region, frame or other element with probability 1 - p, and at least one of each set.

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
        real_BN = np.arange(stay_BN.shape[1]) < size_B[:, None]
        for i in np.flatnonzero(~(stay_BN & real_BN).any(axis=1)):
            stay_BN[i, u_BN[i, : size_B[i]].argmax()] = True
        return [stay_N[:size] for stay_N, size in zip(stay_BN, size_B, strict=True)]


@AUGMENTATIONS.register("grid_drop")
class GridDrop(Drop):
    """Drop cells of a grid at a random rate per image, as the code of VSE-infinity does.

    A uniform number r in [0, 1) is drawn for each image. If r <= p, all cells stay; otherwise each cell is dropped with
    probability p * r. With p = 0.2, 9.6 % of the cells are dropped on average.
    """

    def dropped(self, sample_B1: np.ndarray, draw: Draw) -> np.ndarray:
        """Return the probability that a cell of each image is dropped."""
        r_B1 = draw(sample_B1, 0, 1)
        return np.where(r_B1 <= self.p, 0.0, self.p * r_B1)


@AUGMENTATIONS.register("mask_replace_delete")
class MaskReplaceDelete:
    """Mask, replace at random, or delete each word with probability p, as the code of VSE-infinity does.

    By default half of the changed words are masked, a tenth are replaced, and the rest are deleted. All subwords of a
    word are treated the same. Special tokens are never changed.

    Args:
        p: the fraction of words changed.
        mask: the fraction of changed words that become the mask token.
        replace: the fraction of changed words whose subwords become uniformly random ones.
    """

    def __init__(self, *, p: float = 0.2, mask: float = 0.5, replace: float = 0.1) -> None:
        if not (0 <= p <= 1 and mask >= 0 and replace >= 0 and mask + replace <= 1):
            raise ValueError(
                f"p, mask, replace and mask + replace must lie in [0, 1], not {p}, {mask}, {replace}"
            )
        self.p, self.mask, self.replace = p, mask, replace

    def __call__(
        self,
        subword_P: np.ndarray,
        word_P: np.ndarray,
        caption_P: np.ndarray,
        draw: Draw,
        *,
        mask_subword: int,
        vocabulary: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the subwords after augmentation, and which of them stay.

        Args:
            subword_P: the subwords of many captions, one after another.
            word_P: the number of each subword's word in its caption.
            caption_P: the number of each subword's caption in the data set.
            draw: see `Draw`.
            mask_subword: the number of the mask token.
            vocabulary: number of subwords.
        """
        u_P = draw(caption_P, word_P, 0)
        masked = self.p * self.mask
        replaced = masked + self.p * self.replace
        random_P = (draw(caption_P, np.arange(len(subword_P)) - _starts(caption_P), 1) * vocabulary).astype(
            subword_P.dtype
        )
        out_P = np.where(u_P < masked, mask_subword, np.where(u_P < replaced, random_P, subword_P))
        return out_P.astype(subword_P.dtype), (u_P < replaced) | (u_P >= self.p)


@AUGMENTATIONS.register("delete")
class Delete(MaskReplaceDelete):
    """Delete each word with probability p: size augmentation as the paper describes it.

    Args:
        p: the fraction of words deleted.
    """

    def __init__(self, *, p: float = 0.2) -> None:
        super().__init__(p=p, mask=0.0, replace=0.0)


def _starts(caption_P: np.ndarray) -> np.ndarray:
    """Return the index of the first subword of each subword's caption; captions are concatenated."""
    starts = np.flatnonzero(np.r_[True, caption_P[1:] != caption_P[:-1]])
    return np.repeat(starts, np.diff(np.r_[starts, len(caption_P)]))
