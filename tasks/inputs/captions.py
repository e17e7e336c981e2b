"""Captions as token numbers: tokenised once, augmented and padded for each batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor
from tqdm import tqdm

from encoders.base import Tokenizer
from encoders.text.padding import pad_tokens
from tasks.augmentations.sets import Draw
from tasks.augmentations.words import MaskReplaceDelete


class Captions:
    """Token numbers of many captions in three flat arrays, so that millions fit in memory.

    Args:
        captions: the texts.
        tokenizer: what splits them.
        limit: words after which a caption is cut; 0 for never.

    Attributes:
        cut: how many were longer than the limit.
    """

    def __init__(self, captions: Sequence[str], tokenizer: Tokenizer, *, limit: int = 0) -> None:
        subwords: list[int] = []
        words: list[int] = []
        ends = np.zeros(len(captions) + 1, np.int64)
        self.cut = 0
        encoded = tqdm(
            tokenizer.encode(captions), desc="tokenising", total=len(captions), leave=False, delay=2
        )
        for i, line in enumerate(encoded):
            self.cut += 0 < limit < len(line)
            for number, word in enumerate(line[: limit or None]):
                subwords.extend(word)
                words.extend([number] * len(word))
            ends[i + 1] = len(subwords)
        self.tokenizer = tokenizer
        self._subword_P = np.array(subwords, np.int32)
        self._word_P = np.array(words, np.int32)
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends) - 1

    def sizes(self) -> np.ndarray:
        """Return how many tokens each caption has, with `start` and `end` where the tokenizer puts them."""
        return np.diff(self._ends) + 2 * self.tokenizer.ends

    def batch(
        self, index_B: np.ndarray, *, augment: MaskReplaceDelete | None = None, draw: Draw | None = None
    ) -> dict[str, Tensor]:
        """Return `text` `(B, L)`, the token numbers (int64, 0 in the pads), and `text_mask` `(B, L)`.

        Args:
            index_B: which captions.
            augment: what changes their words; nothing where None.
            draw: source of the augmentation's random numbers.
        """
        start_B, size_B = self._ends[index_B], self._ends[index_B + 1] - self._ends[index_B]
        row_P = np.repeat(np.arange(len(index_B)), size_B)
        from_P = (
            np.arange(len(row_P)) - np.repeat(np.cumsum(size_B) - size_B, size_B) + np.repeat(start_B, size_B)
        )
        subword_P = self._subword_P[from_P]
        if augment is not None:
            subword_P, stay_P = augment(
                subword_P,
                self._word_P[from_P],
                index_B[row_P],
                draw,
                mask_subword=self.tokenizer.mask,
                vocabulary=self.tokenizer.size,
            )
            subword_P, row_P = subword_P[stay_P], row_P[stay_P]
            size_B = np.bincount(row_P, minlength=len(index_B))
        token_BL, mask_BL = pad_tokens(subword_P, size_B, self.tokenizer)
        return {"text": token_BL, "text_mask": mask_BL}
