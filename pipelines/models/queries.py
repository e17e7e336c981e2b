"""Queries: a text, an image or video file, features, or an item of the corpus, and the batches made of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polypool.infra.batches import Batch
from polypool.infra.errors import InputError
from polypool.infra.files import existing
from polypool.pipelines.data.extraction.file_features import FileFeatures, readable
from polypool.tasks.inputs.visuals import VisualInputs


@dataclass(frozen=True, kw_only=True)
class Query:
    """What to search with.

    Attributes:
        text: a caption or a question; None for none.
        id: an item of the corpus, of any split.
        file: an image, or a video where `video` is set.
        video: whether `file` is a video.
        features: `(N, F)` of an image or video.
    """

    text: str | None = None
    id: str = ""
    file: Path | None = None
    video: bool = False
    features: np.ndarray | None = None

    @property
    def is_visual(self) -> bool:
        """Whether it has an image or video, in any form."""
        return bool(self.id) or self.file is not None or self.features is not None


class QueryReader:
    """Turns queries into batches of a trained model.

    Args:
        adapter: `ReadsInputs`; for ids `Searchable`.
    """

    def __init__(self, adapter: Any) -> None:
        self.adapter = adapter
        self._files: FileFeatures | None = None

    @property
    def files(self) -> FileFeatures:
        """Computes the features of new files, with the backbone of the model's store.

        Raises:
            InputError: the model does not record how its features were made.
        """
        if self._files is None:
            self._files = FileFeatures.for_model(self.adapter)
        return self._files

    def visual(self, query: Query) -> np.ndarray | Path:
        """Return what the model reads of a query's image or video: features `(N, F)`, or a file if it reads pixels.

        Raises:
            InputError: a file is missing, does not decode, or its features cannot be computed; or an id is unknown.
        """
        if query.features is not None:
            return query.features
        if query.file is None:
            return self._of_item(query.id)
        if self.adapter.visual_dim:
            return self.files.of(query.file, video=query.video)
        modality = self.adapter.modality
        if query.video != (modality == "video"):
            raise InputError(
                f"{query.file}: the model reads the pixels of {modality}s; give one with --{modality} FILE"
            )
        if query.video:  # decoded once, as it is read
            return existing(query.file, what="a video")
        readable(existing(query.file, what="an image"))
        return query.file

    def visual_batch(self, queries: Sequence[Query]) -> Batch:
        """Return the images or videos of queries as a batch; raises as `visual`, or where features do not fit."""
        inputs = self.adapter.visual_inputs([self.visual(query) for query in queries])
        return visual_batch(inputs, np.arange(len(queries)))

    def text_batch(self, queries: Sequence[Query]) -> Batch:
        """Return the texts of queries as a batch.

        Raises:
            InputError: a text has no word.
        """
        texts = tuple(" ".join((query.text or "").split()) for query in queries)
        for text in texts:
            if not any(map(str.isalnum, text)):
                raise InputError(
                    f"the query {text!r} has no word; say what to look for, such as 'a dog on the grass'"
                )
        batch = self.adapter.text_inputs(texts).batch(np.arange(len(texts)))
        for text, mask_L in zip(texts, batch["text_mask"], strict=True):
            if not mask_L.any():
                raise InputError(f"the query {text!r} has no word that the model reads")
        return batch

    def _of_item(self, id: str) -> np.ndarray | Path:
        item, store = self.adapter.corpus.find(id), self.adapter.store
        if store is None:
            return self.adapter.corpus.image_path(item)
        (row,) = store.rows([id])
        return np.array(store[int(row)], np.float32)

    def close(self) -> None:
        """End the processes that decode."""
        if self._files:
            self._files.close()


def visual_batch(inputs: VisualInputs, number_B: np.ndarray) -> Batch:
    """Return images or videos as a batch, as they are evaluated."""
    x, mask_BN = inputs.batch(number_B, sample_B=number_B, draw=None)
    return {"visual": x, "visual_mask": mask_BN}


@contextmanager
def as_file(data: bytes, *, what: str) -> Iterator[Path]:
    """Yield a path at which this process and its children can read the bytes, while the context lasts.

    They are in memory where the system has files there (Linux), else in a temporary file. Errors name `what` instead
    of the path.
    """
    memory = hasattr(os, "memfd_create")
    with os.fdopen(os.memfd_create("upload"), "wb") if memory else tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        path = Path(f"/proc/{os.getpid()}/fd/{file.fileno()}" if memory else file.name)
        try:
            yield path
        except InputError as error:
            raise InputError(str(error).replace(str(path), what)) from error
