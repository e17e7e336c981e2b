"""Images and their captions as training samples, and in order for evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from infra.dist import rank, world
from infra.randomness import uniform
from infra.store import FeatureStore
from tasks.augmentations.sets import Draw
from tasks.augmentations.words import MaskReplaceDelete
from tasks.captions import Captions
from tasks.codes import Batch


class VisualInputs(Protocol):
    """What the visual encoder reads of a split's images: stored sets, or pixels."""

    def batch(self, item_B: np.ndarray, *, sample_B: np.ndarray, draw: Draw | None) -> tuple[Tensor, Tensor]:
        """Return the inputs of the images `item_B` and the mask of their sets.

        Args:
            item_B: numbers of the images in their split.
            sample_B: numbers of the samples that they are drawn for, which decide the augmentation.
            draw: source of the augmentation's random numbers; None leaves the images as they are.
        """


class StoredSets:
    """The sets of a feature store, one for each image.

    Args:
        store: the features.
        ids: of the images of a split, in order.
        augment: which elements stay in training; all where None.
    """

    def __init__(self, store: FeatureStore, ids: Sequence[str], *, augment: Any = None) -> None:
        self.store, self.augment = store, augment
        self.rows = store.rows(ids)

    def batch(self, item_B: np.ndarray, *, sample_B: np.ndarray, draw: Draw | None) -> tuple[Tensor, Tensor]:
        """Return the sets `(B, N, F)` and their mask."""
        rows_B, keep = self.rows[item_B], None
        if self.augment and draw is not None:
            keep = self.augment(self.store.sizes(rows_B), sample_B, draw)
        return self.store.padded(rows_B, keep=keep)


class Pairs:
    """The images of a split with their captions.

    Args:
        image_ids: of the images, in order.
        texts: each image's captions.
        visual: the images' inputs.
        captions: all captions, tokenised, in order.
        augment: changes the words of captions in training.
        by_image: a sample is an image with all its captions, as in DivE, not one caption with its image. Images with
            fewer captions than others have them repeated, so that all workers hold equally many.
    """

    def __init__(
        self,
        image_ids: Sequence[str],
        texts: Sequence[Sequence[str]],
        *,
        visual: VisualInputs,
        captions: Captions,
        augment: MaskReplaceDelete | None = None,
        by_image: bool = False,
    ) -> None:
        self.image_ids = np.array(image_ids)
        self.count_N = np.array([len(lines) for lines in texts])
        self.owner_G = np.repeat(np.arange(len(texts)), self.count_N)
        self.texts = [text for lines in texts for text in lines]
        self.visual, self.captions, self.augment, self.by_image = visual, captions, augment, by_image

    def __len__(self) -> int:
        return len(self.image_ids) if self.by_image else len(self.texts)

    def batch(self, index_B: np.ndarray, *, seed: int, epoch: int) -> Batch:
        """Return `visual`, `visual_mask` and `item` of images, `text`, `text_mask` and `row` of captions."""
        item_N = index_B if self.by_image else self.owner_G[index_B]
        caption_M, row_M = self._captions_of(index_B) if self.by_image else (index_B, np.arange(len(index_B)))
        visual, visual_mask_BN = self.visual.batch(
            item_N, sample_B=index_B, draw=partial(_draw, seed, epoch, 0)
        )
        text_ML, text_mask_ML = self.captions.batch(
            caption_M, augment=self.augment, draw=partial(_draw, seed, epoch, 1)
        )
        return {
            "visual": visual,
            "visual_mask": visual_mask_BN,
            "text": text_ML,
            "text_mask": text_mask_ML,
            "item": torch.from_numpy(item_N),
            "row": torch.from_numpy(row_M),
        }

    def _captions_of(self, item_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return equally many captions of each image, and the row that each belongs to."""
        most = int(self.count_N.max())
        first_N = np.cumsum(self.count_N) - self.count_N
        caption_NC = first_N[item_N][:, None] + np.arange(most) % self.count_N[item_N][:, None]
        return caption_NC.ravel(), np.repeat(np.arange(len(item_N)), most)

    def images(self, size: int) -> Iterator[tuple[Tensor, Batch]]:
        """Yield every image, each worker its share; see `Batches`."""
        for number_B in _parts(np.arange(len(self.image_ids)), size, "encoding images"):
            visual, mask_BN = self.visual.batch(number_B, sample_B=number_B, draw=None)
            yield torch.from_numpy(number_B), {"visual": visual, "visual_mask": mask_BN}

    def sentences(self, size: int) -> Iterator[tuple[Tensor, Batch]]:
        """Yield every caption, those of equal length together, each worker its share."""
        by_length_G = np.argsort(self.captions.sizes(), kind="stable")
        for number_B in _parts(by_length_G, size, "encoding captions"):
            text_BL, mask_BL = self.captions.batch(number_B)
            yield torch.from_numpy(number_B), {"text": text_BL, "text_mask": mask_BL}


def _parts(number_G: np.ndarray, size: int, about: str) -> Iterator[np.ndarray]:
    """Deal the parts of `size` samples to the workers in turn; equally many, so some may be dealt twice."""
    starts = range(0, len(number_G), size)
    turns = -(-len(starts) // world())
    for turn in tqdm(range(turns), desc=about, leave=False, delay=2, disable=rank() > 0):
        start = starts[(turn * world() + rank()) % len(starts)]
        yield number_G[start : start + size]


def _draw(
    seed: int, epoch: int, modality: int, sample: np.ndarray, element: np.ndarray, stream: int
) -> np.ndarray:
    return uniform(seed, epoch, modality, stream, sample, element)
