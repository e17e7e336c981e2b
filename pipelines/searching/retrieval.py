"""The items and captions of a split that are most like a text, an image or a video, by a trained retrieval model."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from infra.data import Batch
from infra.errors import InputError
from pipelines.searching import Method
from pipelines.searching.galleries import Gallery, make_gallery
from pipelines.searching.indices import TopK, evenly
from pipelines.searching.queries import VisualQueries, text_query
from tasks.abilities import Searchable
from tasks.inputs.pairs import Pairs
from tasks.models.base import RetrievalModel

SAMPLE = 64  # queries on which an index that is not exact is measured
CHUNK = 64  # items or captions that go through the model at once, and are held together


@dataclass(frozen=True, kw_only=True)
class Hit:
    """One result. `file` is empty where the corpus has none."""

    rank: int
    score: float
    id: str
    file: str
    caption: str


class RetrievalSearch:
    """Searches the images or videos of a split by text, and their captions by image or video.

    Args:
        adapter: of the task.
        model: in evaluation mode.
        pairs: the data of the split.
        split: whose items and captions are searched.
        method: how; see `make_gallery`.

    Raises:
        InputError: no such split, or items without features.
    """

    def __init__(
        self,
        adapter: Searchable,
        model: RetrievalModel,
        pairs: Pairs,
        *,
        split: str = "test",
        method: Method = "auto",
    ) -> None:
        self.adapter, self.model, self.pairs, self.split, self.method = adapter, model, pairs, split, method
        self.corpus = adapter.corpus
        self.items = self.corpus.items(split)
        self.queries = VisualQueries(adapter)

    @cached_property
    def items_gallery(self) -> Gallery:
        """The images or videos, encoded when they are first searched."""
        return make_gallery(
            self.model,
            "visual",
            lambda: self.pairs.items(CHUNK),
            sample=lambda: self.pairs.captions.batch(evenly(len(self.pairs.texts), SAMPLE)),
            method=self.method,
        )

    @cached_property
    def captions_gallery(self) -> Gallery:
        """The captions, likewise."""

        def sample() -> Batch:
            item_B = evenly(len(self.items), SAMPLE)
            visual, mask_BN = self.pairs.visual.batch(item_B, sample_B=item_B, draw=None)
            return {"visual": visual, "visual_mask": mask_BN}

        batches = lambda: self.pairs.sentences(CHUNK)  # noqa: E731
        return make_gallery(self.model, "text", batches, sample=sample, method=self.method)

    def by_text(self, text: str, k: int) -> list[Hit]:
        """Return the images or videos that are most like a text, each with its first caption.

        Raises:
            InputError: there is no word in it.
        """
        (found,) = self.by_texts([text], k)
        if isinstance(found, InputError):
            raise found
        return found

    def by_texts(self, texts: Sequence[str], k: int) -> list[list[Hit] | InputError]:
        """Return what `by_text` returns for each text, or the error that it raises; they are searched together."""
        size = self.items_gallery.at_once
        if len(texts) > size:
            return [*self.by_texts(texts[:size], k), *self.by_texts(texts[size:], k)]
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # a parser of role graphs counts what it parsed
                queries = text_query(self.adapter, *texts)
            tops = self.items_gallery.best(queries, k)
        except InputError as error:
            return [error] if len(texts) == 1 else [self.by_texts([text], k)[0] for text in texts]
        return [self._items(top) for top in tops]

    def _items(self, top: TopK) -> list[Hit]:
        return self._hits(top, [(place, self.items[place].captions[0]) for place in top.place_K.tolist()])

    def by_file(self, path: Path, k: int, *, video: bool) -> list[Hit]:
        """Return the captions that are most like a file.

        Raises:
            InputError: it is missing, does not decode, or its features cannot be made.
        """
        return self._captions(self.queries.of_file(path, video=video), k)

    def by_visuals(self, visuals: Sequence[np.ndarray | Path], k: int) -> list[list[Hit]]:
        """Return the captions that are most like each of some images or videos; they are searched together.

        Args:
            visuals: features `(N, F)`, or image files for a model that reads pixels.
            k: how many for each.

        Raises:
            InputError: one of them does not fit the model.
        """
        size = self.captions_gallery.at_once
        parts = [visuals[start : start + size] for start in range(0, len(visuals), size)]
        tops = [top for part in parts for top in self.captions_gallery.best(self.queries.of_visuals(part), k)]
        return [self._captioned(top) for top in tops]

    def by_id(self, id: str, k: int) -> list[Hit]:
        """Return the captions that are most like an item of the corpus.

        Raises:
            InputError: there is no such item.
        """
        return self._captions(self.queries.of_id(id), k)

    def _captions(self, query: Batch, k: int) -> list[Hit]:
        (top,) = self.captions_gallery.best(query, k)
        return self._captioned(top)

    def _captioned(self, top: TopK) -> list[Hit]:
        owner_T = self.pairs.owner_T
        return self._hits(
            top, [(int(owner_T[place]), self.pairs.texts[place]) for place in top.place_K.tolist()]
        )

    def _hits(self, top: TopK, captioned: list[tuple[int, str]]) -> list[Hit]:
        """Return results, given the number of the item and the caption of each."""
        return [
            Hit(
                rank=rank,
                score=score,
                id=self.items[number].id,
                file=str(self.corpus.image_path(self.items[number])) if self.items[number].path else "",
                caption=caption,
            )
            for rank, (score, (number, caption)) in enumerate(
                zip(top.score_K.tolist(), captioned, strict=True), start=1
            )
        ]

    def close(self) -> None:
        """End the processes that decode."""
        self.queries.close()
