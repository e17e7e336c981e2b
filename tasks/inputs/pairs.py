"""Captions and questions with their images or videos, as training samples and in order for evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from polypool.infra.batches import Batch
from polypool.infra.compute.dist import rank, world
from polypool.infra.process.progress import Progress
from polypool.infra.store.resident import StoreRows
from polypool.tasks.inputs.augmentations import Draw, draw_for
from polypool.tasks.inputs.corpus_inputs import CorpusInputs
from polypool.tasks.inputs.texts import TextAugmentation, TextInputs
from polypool.tasks.inputs.visuals import VisualInputs


def visual_batch(
    inputs: VisualInputs, item_B: np.ndarray, *, sample_B: np.ndarray | None = None, draw: Draw | None = None
) -> Batch:
    """Return `visual` and `visual_mask` of items, augmented by `draw` for the samples `sample_B`; unchanged if None."""
    visual, mask_BN = inputs.batch(item_B, sample_B=item_B if sample_B is None else sample_B, draw=draw)
    return {"visual": visual, "visual_mask": mask_BN}


class Pairs:
    """The images or videos of a split with their captions.

    Args:
        item_ids: of the images or videos, in order.
        texts: each item's captions.
        visual: the items' inputs.
        captions: all captions, in order, as the model reads them.
        augment: changes the words or elements of captions in training.
        by_item: a sample is an item with all its captions, as in DivE, not one caption with its item. Items with
            fewer captions than others have them repeated, so that all workers hold equally many.
    """

    def __init__(
        self,
        item_ids: Sequence[str],
        texts: Sequence[Sequence[str]],
        *,
        visual: VisualInputs,
        captions: TextInputs,
        augment: TextAugmentation | None = None,
        by_item: bool = False,
    ) -> None:
        self.item_ids = np.array(item_ids)
        self.count_N = np.array([len(lines) for lines in texts])
        self.owner_T = np.repeat(np.arange(len(texts)), self.count_N)
        self.texts = [text for lines in texts for text in lines]
        self.visual, self.captions, self.augment, self.by_item = visual, captions, augment, by_item

    def __len__(self) -> int:
        return len(self.item_ids) if self.by_item else len(self.texts)

    @property
    def stored(self) -> list[StoreRows]:
        """The inputs that read stores."""
        return [inputs for inputs in (self.visual, self.captions) if isinstance(inputs, StoreRows)]

    def batch(self, index_B: np.ndarray, *, seed: int, epoch: int) -> Batch:
        """Return `visual`, `visual_mask` and `item` of items, and `text`, `text_mask`, ... and `row` of captions.

        `item` are numbers in the split, `row` the index of each caption's item in the batch; both int64.
        """
        item_N = index_B if self.by_item else self.owner_T[index_B]
        caption_M, row_M = self._captions_of(index_B) if self.by_item else (index_B, np.arange(len(index_B)))
        return {
            **visual_batch(self.visual, item_N, sample_B=index_B, draw=draw_for(seed, epoch, 0)),
            **self.captions.batch(caption_M, augment=self.augment, draw=draw_for(seed, epoch, 1)),
            "item": torch.from_numpy(item_N),
            "row": torch.from_numpy(row_M),
        }

    def _captions_of(self, item_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return equally many captions of each item, and the row that each belongs to."""
        most = int(self.count_N.max())
        first_N = np.cumsum(self.count_N) - self.count_N
        caption_NC = first_N[item_N][:, None] + np.arange(most) % self.count_N[item_N][:, None]
        return caption_NC.ravel(), np.repeat(np.arange(len(item_N)), most)

    def items(self, size: int) -> Iterator[tuple[Tensor, Batch]]:
        """Yield every image or video, each worker its share; see `Batches`."""
        for number_B in _parts(np.arange(len(self.item_ids)), size, "encoding items"):
            yield torch.from_numpy(number_B), visual_batch(self.visual, number_B)

    def sentences(self, size: int) -> Iterator[tuple[Tensor, Batch]]:
        """Yield every caption, sorted by length, each worker its share."""
        by_length_T = np.argsort(self.captions.sizes(), kind="stable")
        for number_B in _parts(by_length_T, size, "encoding captions"):
            yield torch.from_numpy(number_B), self.captions.batch(number_B)


def _parts(number_S: np.ndarray, size: int, about: str) -> Iterator[np.ndarray]:
    """Deal the parts of `size` samples to the workers in turn; equally many, so some may be dealt twice."""
    starts = range(0, len(number_S), size)
    turns = -(-len(starts) // world())
    for turn in Progress(range(turns), desc=about, leave=False, disable=rank() > 0):
        start = starts[(turn * world() + rank()) % len(starts)]
        yield number_S[start : start + size]


class Targets(Protocol):
    """The targets of the questions of a split."""

    def batch(self, index_B: np.ndarray) -> Tensor:
        """Return the `(B, A)` target of every answer to the questions `index_B`, float32."""


def question_data(inputs: CorpusInputs, split: str, *, targets: Targets | None) -> QuestionData:
    """Return the questions of a split of a `QuestionCorpus`."""
    questions, images = inputs.corpus.questions(split), inputs.corpus.items(split)
    number = {image.id: n for n, image in enumerate(images)}
    return QuestionData(
        np.array([number[question.image_id] for question in questions]),
        visual=inputs.item_inputs(images),
        texts=inputs.corpus_texts(split),
        targets=targets,
        augment=inputs.text_augmentation(),
    )


class QuestionData:
    """The questions of a split with their images.

    Args:
        image_Q: the number of each question's image among `visual`.
        visual: the images' inputs, each image once.
        texts: the questions as the model reads them.
        targets: None without known answers; then the questions can be evaluated, not trained on.
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

    @property
    def stored(self) -> list[StoreRows]:
        """The inputs that read stores."""
        return [inputs for inputs in (self.visual, self.texts) if isinstance(inputs, StoreRows)]

    def batch(self, index_B: np.ndarray, *, seed: int, epoch: int) -> Batch:
        """Return `visual`, `visual_mask`, `text`, `text_mask`, ... and `target` `(B, A)` of questions.

        An image of two questions comes twice, so that batch statistics do not depend on the workers' shares, and each
        question draws a separate augmentation of its image.
        """
        targets = self.targets
        assert targets is not None, "training refuses questions without answers"
        draw = draw_for(seed, epoch, 0)
        return {
            **visual_batch(self.visual, self.image_Q[index_B], sample_B=index_B, draw=draw),
            **self.texts.batch(index_B, augment=self.augment, draw=draw_for(seed, epoch, 1)),
            "target": targets.batch(index_B),
        }

    def evaluation_batch(self, index_B: np.ndarray) -> Batch:
        """Return questions as they are, each image once, and `image` `(B,)`, the row of each question's image."""
        image_N, row_B = np.unique(self.image_Q[index_B], return_inverse=True)
        return {
            **visual_batch(self.visual, image_N),
            **self.texts.batch(index_B),
            "image": torch.from_numpy(row_B),
        }
