"""Word augmentation: masking, replacing and deleting whole words of a caption in training."""

from __future__ import annotations

import numpy as np

from infra.registry import AUGMENTATIONS
from tasks.augmentations.sets import Draw


@AUGMENTATIONS.register("mask_replace_delete")
class MaskReplaceDelete:
    """Change each word with probability p: half of these are masked, a tenth replaced at random, the rest
    deleted (VSE-infinity's code). A word's pieces share its fate; special tokens are never touched.

    Args:
        p: the share of words changed.
        mask: the share of changed words that become the mask token.
        replace: the share of changed words whose pieces become uniformly random ones.
    """

    def __init__(self, *, p: float = 0.2, mask: float = 0.5, replace: float = 0.1) -> None:
        if not (0 <= p <= 1 and mask >= 0 and replace >= 0 and mask + replace <= 1):
            raise ValueError(
                f"p, mask, replace and mask + replace must lie in [0, 1], not {p}, {mask}, {replace}"
            )
        self.p, self.mask, self.replace = p, mask, replace

    def __call__(
        self,
        piece_P: np.ndarray,
        word_P: np.ndarray,
        caption_P: np.ndarray,
        draw: Draw,
        *,
        mask_piece: int,
        vocabulary: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the pieces after augmentation, and which of them stay.

        Args:
            piece_P: the pieces of many captions, one after another.
            word_P: the number of each piece's word in its caption.
            caption_P: the number of each piece's caption in the data set.
            draw: see `Draw`.
            mask_piece: the number of the mask token.
            vocabulary: how many pieces there are.
        """
        u_P = draw(caption_P, word_P, 0)
        masked = self.p * self.mask
        replaced = masked + self.p * self.replace
        random_P = (draw(caption_P, np.arange(len(piece_P)) - _first(caption_P), 1) * vocabulary).astype(
            piece_P.dtype
        )
        out_P = np.where(u_P < masked, mask_piece, np.where(u_P < replaced, random_P, piece_P))
        return out_P.astype(piece_P.dtype), (u_P < replaced) | (u_P >= self.p)


@AUGMENTATIONS.register("delete")
class Delete(MaskReplaceDelete):
    """Delete each word with probability p: size augmentation as the paper describes it.

    Args:
        p: the share of words deleted.
    """

    def __init__(self, *, p: float = 0.2) -> None:
        super().__init__(p=p, mask=0.0, replace=0.0)


def _first(caption_P: np.ndarray) -> np.ndarray:
    """Return where each piece's caption begins; captions stand one after another."""
    starts = np.flatnonzero(np.r_[True, caption_P[1:] != caption_P[:-1]])
    return np.repeat(starts, np.diff(np.r_[starts, len(caption_P)]))
