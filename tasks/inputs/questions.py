"""Questions about images as training samples, and in order for evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from infra.data import Batch, fetch_ahead
from tasks.augmentations.sets import draw_for
from tasks.inputs.pairs import TextAugmentation, TextInputs, VisualInputs


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
        augment: changes the words or elements of questions in training.
    """

    def __init__(
        self,
        image_Q: np.ndarray,
        *,
        visual: VisualInputs,
        texts: TextInputs,
        targets: Targets | None,
        augment: TextAugmentation | None = None,
    ) -> None:
        self.image_Q, self.visual, self.texts = image_Q, visual, texts
        self.targets, self.augment = targets, augment

    def __len__(self) -> int:
        return len(self.image_Q)

    def fetch_ahead(self, index_B: np.ndarray) -> Sequence[Future]:
        """Begin to fetch what questions that will be asked for read; see `infra.data.FetchesAhead`."""
        return [*fetch_ahead(self.visual, self.image_Q[index_B]), *fetch_ahead(self.texts, index_B)]

    def batch(self, index_B: np.ndarray, *, seed: int, epoch: int) -> Batch:
        """Return `visual`, `visual_mask`, `text`, `text_mask`, ... and `target` `(B, A)` of questions.

        An image that two of them share comes twice, so that batch statistics do not depend on who is in which worker's
        share, and each question draws its image's augmentation for itself.
        """
        visual, visual_mask_BN = self.visual.batch(
            self.image_Q[index_B], sample_B=index_B, draw=draw_for(seed, epoch, 0)
        )
        text = self.texts.batch(index_B, augment=self.augment, draw=draw_for(seed, epoch, 1))
        return {
            "visual": visual,
            "visual_mask": visual_mask_BN,
            **text,
            "target": self.targets.batch(index_B),
        }

    def evaluation_batch(self, index_B: np.ndarray) -> Batch:
        """Return questions as they are, each image once, and `image` `(B,)`, the row of each question's image."""
        image_N, row_B = np.unique(self.image_Q[index_B], return_inverse=True)
        visual, visual_mask_NN = self.visual.batch(image_N, sample_B=image_N, draw=None)
        return {
            "visual": visual,
            "visual_mask": visual_mask_NN,
            **self.texts.batch(index_B),
            "image": torch.from_numpy(row_B),
        }
