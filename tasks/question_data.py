"""Questions about images as training samples, and in order for evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from encoders.base import Tokenizer
from infra.randomness import uniform
from tasks.augmentations.words import MaskReplaceDelete
from tasks.captions import Captions
from tasks.codes import Batch
from tasks.pairs import TextInputs, VisualInputs


class Targets(Protocol):
    """What each question of a split should be answered."""

    def batch(self, index_B: np.ndarray) -> Tensor:
        """Return the `(B, A)` target of every answer to the questions `index_B`, float32."""


class QuestionData:
    """The questions of a split with their images.

    Args:
        image_Q: the number of each question's image among `visual`.
        visual: the images' inputs, each image once.
        texts: the questions as the model reads them.
        targets: None where nobody answered them; then they can be asked, and not learnt from.
        augment: changes the words of questions in training.
    """

    def __init__(
        self,
        image_Q: np.ndarray,
        *,
        visual: VisualInputs,
        texts: TextInputs,
        targets: Targets | None,
        augment: MaskReplaceDelete | None = None,
    ) -> None:
        self.image_Q, self.visual, self.texts = image_Q, visual, texts
        self.targets, self.augment = targets, augment

    def __len__(self) -> int:
        return len(self.image_Q)

    def batch(self, index_B: np.ndarray, *, seed: int, epoch: int) -> Batch:
        """Return `visual`, `visual_mask`, `text`, `text_mask`, ... and `target` `(B, A)` of questions.

        An image that two of them share comes twice, so that batch statistics do not depend on who is in which worker's
        share, and each question draws its image's augmentation for itself.
        """
        visual, visual_mask_BN = self.visual.batch(
            self.image_Q[index_B], sample_B=index_B, draw=partial(_draw, seed, epoch, 0)
        )
        text = self.texts.batch(index_B, augment=self.augment, draw=partial(_draw, seed, epoch, 1))
        return {
            "visual": visual,
            "visual_mask": visual_mask_BN,
            **text,
            "target": self.targets.batch(index_B),
        }

    def asked(self, index_B: np.ndarray) -> Batch:
        """Return questions as they are, each image once, and `image` `(B,)`, the row of each question's image."""
        image_N, row_B = np.unique(self.image_Q[index_B], return_inverse=True)
        visual, visual_mask_NN = self.visual.batch(image_N, sample_B=image_N, draw=None)
        return {
            "visual": visual,
            "visual_mask": visual_mask_NN,
            **self.texts.batch(index_B),
            "image": torch.from_numpy(row_B),
        }


class CutQuestions(Captions):
    """Questions as token numbers, and how many of them were longer than the limit.

    Args:
        questions: the texts.
        tokenizer: what splits them.
        limit: words after which a question is cut; 0 for never.
    """

    def __init__(self, questions: Sequence[str], tokenizer: Tokenizer, *, limit: int = 0) -> None:
        counting = _Counting(tokenizer, limit)
        super().__init__(questions, counting, limit=limit)
        self.tokenizer, self.cut = tokenizer, counting.longer


class _Counting:
    """A tokenizer that counts the texts of more words than a limit while it splits them."""

    def __init__(self, tokenizer: Tokenizer, limit: int) -> None:
        self.tokenizer, self.limit, self.longer = tokenizer, limit, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def encode(self, texts: Sequence[str]) -> Iterator[list[list[int]]]:
        for words in self.tokenizer.encode(texts):
            self.longer += 0 < self.limit < len(words)
            yield words


def _draw(
    seed: int, epoch: int, modality: int, sample: np.ndarray, element: np.ndarray, stream: int
) -> np.ndarray:
    return uniform(seed, epoch, modality, stream, sample, element)
