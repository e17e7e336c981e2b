"""Images or videos and their captions as training samples, and in order for evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from infra.compute.dist import rank, world
from infra.data import Batch, announced, fetch_ahead
from infra.store import FeatureStore
from infra.video.sampling import choose_frames
from tasks.augmentations.sets import Draw, Drop, draw_for
from tasks.augmentations.words import MaskReplaceDelete

TextAugmentation = MaskReplaceDelete | Drop
"""Of words, or of stored features."""


class VisualInputs(Protocol):
    """What the visual encoder reads of a split's images or videos: stored sets, or pixels."""

    def batch(self, item_B: np.ndarray, *, sample_B: np.ndarray, draw: Draw | None) -> tuple[Tensor, Tensor]:
        """Return the inputs of the images `item_B` and the mask of their sets.

        Args:
            item_B: numbers of the images in their split.
            sample_B: numbers of the samples that they are drawn for, which decide the augmentation.
            draw: source of the augmentation's random numbers; None leaves the images as they are.
        """


class TextInputs(Protocol):
    """What a model reads of a split's captions: their words, and maybe more; or stored features of them."""

    def __len__(self) -> int:
        """Return the number of captions."""

    def sizes(self) -> np.ndarray:
        """Return how many tokens each caption has."""

    def batch(
        self, index_B: np.ndarray, *, augment: TextAugmentation | None = None, draw: Draw | None = None
    ) -> Batch:
        """Return `text` `(B, L)`, or `(B, L, F)` of features, and `text_mask` `(B, L)` of the captions `index_B`, and
        what else the model reads of them.
        """


class StoredSets:
    """The sets of a feature store, one for each image or video.

    Args:
        store: the features.
        ids: of the items of a split, in order.
        augment: which elements stay in training; all where None.
        limit: elements of a set; larger ones are thinned out evenly, as HGR does with frames; 0 for no limit.
    """

    def __init__(
        self, store: FeatureStore, ids: Sequence[str], *, augment: Any = None, limit: int = 0
    ) -> None:
        self.store, self.augment, self.limit = store, augment, limit
        self.rows = store.rows(ids)

    def fetch_ahead(self, item_B: np.ndarray) -> Sequence[Future]:
        """Begin to fetch the sets of items that will be asked for; see `infra.data.FetchesAhead`."""
        return self.store.fetch_ahead(self.rows[item_B])

    def batch(self, item_B: np.ndarray, *, sample_B: np.ndarray, draw: Draw | None) -> tuple[Tensor, Tensor]:
        """Return the sets `(B, N, F)` and their mask."""
        rows_B, selected = self.rows[item_B], None
        size_B = self.store.sizes(rows_B)
        if self.limit:
            selected = [_thinned(size, self.limit) for size in size_B.tolist()]
            size_B = np.minimum(size_B, self.limit)
        if self.augment and draw is not None:
            stay = self.augment(size_B, sample_B, draw)
            selected = stay if selected is None else [_both(*two) for two in zip(selected, stay, strict=True)]
        return self.store.padded(rows_B, keep=selected)


def _thinned(size: int, limit: int) -> np.ndarray:
    selected_N = np.zeros(size, dtype=bool)
    selected_N[choose_frames(size, limit)] = True
    return selected_N


def _both(selected_N: np.ndarray, stay_K: np.ndarray) -> np.ndarray:
    """Return `selected_N` with only those of its K selected elements that stay."""
    selected_N[selected_N] = stay_K
    return selected_N


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

    def fetch_ahead(self, index_B: np.ndarray) -> Sequence[Future]:
        """Begin to fetch what samples that will be asked for read; see `infra.data.FetchesAhead`."""
        item_N = index_B if self.by_item else self.owner_T[index_B]
        caption_M = self._captions_of(index_B)[0] if self.by_item else index_B
        return [*fetch_ahead(self.visual, item_N), *fetch_ahead(self.captions, caption_M)]

    def batch(self, index_B: np.ndarray, *, seed: int, epoch: int) -> Batch:
        """Return `visual`, `visual_mask` and `item` of items, `text`, `text_mask`, ... and `row` of captions."""
        item_N = index_B if self.by_item else self.owner_T[index_B]
        caption_M, row_M = self._captions_of(index_B) if self.by_item else (index_B, np.arange(len(index_B)))
        visual, visual_mask_BN = self.visual.batch(item_N, sample_B=index_B, draw=draw_for(seed, epoch, 0))
        text = self.captions.batch(caption_M, augment=self.augment, draw=draw_for(seed, epoch, 1))
        return {
            "visual": visual,
            "visual_mask": visual_mask_BN,
            **text,
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
        parts = _parts(np.arange(len(self.item_ids)), size, "encoding items")
        for number_B in announced(self.visual, parts, ahead=1):
            visual, mask_BN = self.visual.batch(number_B, sample_B=number_B, draw=None)
            yield torch.from_numpy(number_B), {"visual": visual, "visual_mask": mask_BN}

    def sentences(self, size: int) -> Iterator[tuple[Tensor, Batch]]:
        """Yield every caption, those of equal length together, each worker its share."""
        by_length_T = np.argsort(self.captions.sizes(), kind="stable")
        parts = _parts(by_length_T, size, "encoding captions")
        for number_B in announced(self.captions, parts, ahead=1):
            yield torch.from_numpy(number_B), self.captions.batch(number_B)


def _parts(number_S: np.ndarray, size: int, about: str) -> Iterator[np.ndarray]:
    """Deal the parts of `size` samples to the workers in turn; equally many, so some may be dealt twice."""
    starts = range(0, len(number_S), size)
    turns = -(-len(starts) // world())
    for turn in tqdm(range(turns), desc=about, leave=False, delay=2, disable=rank() > 0):
        start = starts[(turn * world() + rank()) % len(starts)]
        yield number_S[start : start + size]
