"""Texts of a corpus to features in Ray's workers: each distinct text once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from encoders.backbones.base import build_backbone
from infra.store.ids import text_id
from infra.trust import trust_modules
from pipelines.extraction.workers import Batch, Row
from tasks.datasets.corpus import Corpus
from tasks.datasets.questions import QuestionCorpus


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


class TextExtractor:
    """Describes batches of texts; lives in a Ray actor.

    Args:
        backbone: spec of the backbone.
        threads: that torch may use.
        trusting: modules whose code the spec may name.
    """

    one_by_one = False

    def __init__(self, *, backbone: str, threads: int, trusting: Sequence[str] = ()) -> None:
        import torch

        trust_modules(*trusting)
        torch.set_num_threads(threads)
        self._backbone = build_backbone(backbone)

    def __call__(self, batch: Batch) -> list[Row]:
        """Return a row for each of the batch's `ids` and `texts`: its features, or why there are none."""
        rows = []
        described = self._backbone(list(batch["texts"]))
        for id, text, x_ND in zip(batch["ids"], batch["texts"], described, strict=True):
            row = {"id": id, "path": repr(text), "why": "", "x_NW": None}
            if isinstance(x_ND, str):
                row["why"] = x_ND
            else:
                row["x_NW"] = np.ascontiguousarray(x_ND, np.float32)
            rows.append(row)
        return rows
