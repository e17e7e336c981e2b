"""Word augmentation: masking, replacing and deleting whole words of a caption in training."""

from __future__ import annotations

import numpy as np

from polypool.infra.registry import AUGMENTATIONS
from polypool.tasks.augmentations.sets import Draw


@AUGMENTATIONS.register("mask_replace_delete")
class MaskReplaceDelete:
    """Change each word with probability p: half of these are masked, a tenth replaced at random, the rest
    deleted (VSE-infinity's code). A word's subwords share its fate; special tokens are never touched.

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
            vocabulary: how many subwords there are.
        """
        u_P = draw(caption_P, word_P, 0)
        masked = self.p * self.mask
        replaced = masked + self.p * self.replace
        random_P = (draw(caption_P, np.arange(len(subword_P)) - _first(caption_P), 1) * vocabulary).astype(
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


def _first(caption_P: np.ndarray) -> np.ndarray:
    """Return where each subword's caption begins; captions stand one after another."""
    starts = np.flatnonzero(np.r_[True, caption_P[1:] != caption_P[:-1]])
    return np.repeat(starts, np.diff(np.r_[starts, len(caption_P)]))
