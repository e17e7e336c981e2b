"""Queries as a model reads them: a text, an image or video file, or an item of the corpus, each a batch of one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from infra.data import Batch
from infra.errors import InputError
from infra.files import existing
from pipelines.extraction.files import FileFeatures, readable
from tasks.abilities import ReadsInputs, Searchable
from tasks.datasets.corpus import Item
from tasks.datasets.questions import Image


class VisualQueries:
    """Turns a file, or the id of an item, into a batch of one.

    Args:
        adapter: of the task that the model was trained on.
    """

    def __init__(self, adapter: Searchable) -> None:
        self.adapter = adapter
        self._files: FileFeatures | None = None

    def of_file(self, path: Path, *, video: bool) -> Batch:
        """Return what the model reads of a file.

        Raises:
            InputError: it is missing, does not decode, or its features cannot be made.
        """
        if self.adapter.store is None:
            if video:
                raise InputError(f"{path}: the model reads the pixels of images; give one with --image FILE")
            readable(existing(path, what="an image"))
            return self._batch(path)
        if self._files is None:
            self._files = FileFeatures.for_model(self.adapter)
        return self._batch(self._files.of(path, video=video))

    def of_id(self, id: str) -> Batch:
        """Return what the model reads of an item of the corpus.

        Raises:
            InputError: the corpus has no such item, or it has no features or image.
        """
        item = self.item(id)
        store = self.adapter.store
        if store is None:
            return self._batch(self.adapter.corpus.image_path(item))
        (row,) = store.rows([id])
        return self._batch(np.array(store[int(row)], np.float32))

    def of_visuals(self, visuals: Sequence[np.ndarray | Path]) -> Batch:
        """Return what the model reads of images or videos: features `(N, F)`, or files for one that reads pixels.

        Raises:
            InputError: features of another shape, or a file that does not decode.
        """
        inputs, number_B = self.adapter.visual_inputs(visuals), np.arange(len(visuals))
        x, mask_BN = inputs.batch(number_B, sample_B=number_B, draw=None)
        return {"visual": x, "visual_mask": mask_BN}

    def item(self, id: str) -> Item | Image:
        """Return an item of the corpus, of whichever split.

        Raises:
            InputError: there is none.
        """
        corpus = self.adapter.corpus
        for split in corpus.splits:
            for item in corpus.items(split):
                if item.id == id:
                    return item
        like = ", ".join(map(repr, corpus.ids[:3].to_pylist()))
        raise InputError(f"{corpus.folder}: no item has the id {id!r}; ids here look like {like}")

    def _batch(self, visual: np.ndarray | Path) -> Batch:
        return self.of_visuals([visual])

    def close(self) -> None:
        """End the processes that decode."""
        if self._files:
            self._files.close()


def text_query(adapter: ReadsInputs, *texts: str) -> Batch:
    """Return what the model reads of the texts of queries.

    Raises:
        InputError: there is no word in one.
    """
    texts = tuple(" ".join(text.split()) for text in texts)
    for text in texts:
        if not any(map(str.isalnum, text)):
            raise InputError(
                f"the query {text!r} has no word; say what to look for, such as 'a dog on the grass'"
            )
    batch = adapter.text_inputs(texts).batch(np.arange(len(texts)))
    for text, mask_L in zip(texts, batch["text_mask"], strict=True):
        if not mask_L.any():
            raise InputError(f"the query {text!r} has no word that the model reads")
    return batch
