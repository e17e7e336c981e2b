"""Extractors of images and texts, which live in Ray's workers, and the rows that they return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from typing import Any

import numpy as np
from PIL import Image

from polypool.encoders.backbones import Described, build_backbone
from polypool.infra.pictures.opening import load
from polypool.infra.store.ids import text_id
from polypool.infra.trust import trust_modules
from polypool.pipelines.data.extraction.workers import Batch, Row
from polypool.tasks.datasets.corpus import Corpus
from polypool.tasks.datasets.questions import QuestionCorpus


@dataclass(frozen=True, kw_only=True)
class Text:
    """A caption or question of a split; its id is that of every text like it."""

    id: str
    split: str
    text: str


def texts_of(corpus: Corpus | QuestionCorpus, split: str, *, limit: int | None) -> Iterator[Text]:
    """Yield the captions of the first items of a split, or its first questions; all without a limit.

    Raises:
        InputError: the corpus has no such split.
    """
    if isinstance(corpus, QuestionCorpus):
        lines = (line for (line,) in islice(corpus.rows(split, "question"), limit))
    else:
        lines = (line for (captions,) in islice(corpus.rows(split, "captions"), limit) for line in captions)
    yield from (Text(id=text_id(line), split=split, text=line) for line in lines)


class ImageExtractor:
    """Decodes and describes batches of images.

    Args:
        backbone: spec of the backbone.
        threads: images decoded at a time.
        trusting: modules whose code the spec may name.
    """

    one_by_one = False
    """Whether a batch's inputs are described independently of each other."""

    def __init__(self, *, backbone: str, threads: int, trusting: Sequence[str] = ()) -> None:
        trust_modules(*trusting)
        self._backbone: Any = build_backbone(backbone)
        self._pool = ThreadPoolExecutor(threads)

    def __call__(self, batch: Batch) -> list[Row]:
        """Return a row for each of the batch's `ids` and `paths`."""
        loaded = list(self._pool.map(load, batch["paths"]))
        images = [image for image in loaded if isinstance(image, Image.Image)]
        features = iter(self._backbone(images) if images else [])
        return [
            row_of(id, path, image if isinstance(image, str) else next(features))
            for id, path, image in zip(batch["ids"], batch["paths"], loaded, strict=True)
        ]


class TextExtractor:
    """Describes batches of texts.

    Args:
        backbone: spec of the backbone.
        threads: that torch may use.
        trusting: modules whose code the spec may name.
    """

    one_by_one = False

    def __init__(self, *, backbone: str, threads: int, trusting: Sequence[str] = ()) -> None:
        import torch  # slow, and of use to this extractor alone

        trust_modules(*trusting)
        torch.set_num_threads(threads)
        self._backbone: Any = build_backbone(backbone)

    def __call__(self, batch: Batch) -> list[Row]:
        """Return a row for each of the batch's `ids` and `texts`."""
        described = self._backbone(list(batch["texts"]))
        return [
            row_of(id, repr(text), x_ND)
            for id, text, x_ND in zip(batch["ids"], batch["texts"], described, strict=True)
        ]


def row_of(id: str, path: str, described: np.ndarray | Described | str) -> Row:
    """Return a row of what a backbone returned, or of why there are no features."""
    if isinstance(described, str):
        return {"id": id, "path": path, "why": described, "x_NW": None}
    x_NW = described.side_by_side() if isinstance(described, Described) else described
    return {"id": id, "path": path, "why": "", "x_NW": np.ascontiguousarray(x_NW, np.float32)}


def parted(x_NW: np.ndarray, columns: Mapping[str, int]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the vectors of a row's array, and its columns."""
    first = x_NW.shape[1] - sum(columns.values())
    ends = accumulate((columns[name] for name in sorted(columns)), initial=first)
    return x_NW[:, :first], {
        name: x_NW[:, begin:end] for name, (begin, end) in zip(sorted(columns), pairwise(ends), strict=True)
    }
