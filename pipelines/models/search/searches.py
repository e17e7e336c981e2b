"""Searches of a split: items for a text, captions for an image or video, answers to a question about an image."""

from __future__ import annotations

import contextlib
import io
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import nn

from polypool.infra.batches import Batch
from polypool.infra.compute.device import device_of, on_device
from polypool.infra.errors import InputError
from polypool.pipelines.models.search import Method
from polypool.pipelines.models.search.galleries import Gallery, make_gallery
from polypool.pipelines.models.search.indices import TopK, evenly
from polypool.pipelines.models.search.queries import Query, QueryReader, visual_batch
from polypool.tasks.abilities import Answers, Searchable
from polypool.tasks.datasets.corpus import Corpus
from polypool.tasks.datasets.questions import QuestionCorpus
from polypool.tasks.inputs.pairs import Pairs
from polypool.tasks.models.retrieval_model import RetrievalModel

SAMPLE = 64  # queries on which an index that is not exact is measured
CHUNK = 64  # items or captions that go through the model at once, and are held together


@dataclass(frozen=True, kw_only=True)
class Hit:
    """An item or caption that was found. `file` is empty where the corpus has none."""

    rank: int
    score: float
    id: str
    file: str
    caption: str


class Answer(NamedTuple):
    """An answer to a question, and the model's probability of it, from 0 to 1."""

    answer: str
    probability: float


Result = TypeVar("Result", Hit, Answer)


class Search(ABC, Generic[Result]):
    """A search of one split by a trained model.

    Args:
        adapter: of the task, `Searchable`.
        split: whose items are searched, or offered to ask about.
    """

    def __init__(self, adapter: Any, *, split: str) -> None:
        self.adapter, self.split = adapter, split
        self.reader = QueryReader(adapter)

    @property
    def corpus(self) -> Corpus | QuestionCorpus:
        """The corpus; it is opened when it is first needed."""
        return self.adapter.corpus

    @cached_property
    def items(self) -> list[Any]:
        """The split's `Item`s or `Image`s; an unknown split is an `InputError`."""
        return self.corpus.items(self.split)

    def find(self, query: Query, k: int) -> list[Result]:
        """Return the k best results of a query, best first.

        Raises:
            InputError: the query lacks a part or has one too many, a file does not decode or its features cannot be
                computed, an id is unknown, a text has no word, or the model's scores are not finite.
        """
        (results,) = self.find_each([query], k)
        return results

    @abstractmethod
    def find_each(self, queries: Sequence[Query], k: int) -> list[list[Result]]:
        """Return what `find` returns for each query; they go through the model together."""

    def close(self) -> None:
        """End the processes that decode."""
        self.reader.close()


class RetrievalSearch(Search[Hit]):
    """Finds images or videos by text, and captions by image or video, by a `method` of `make_gallery`.

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
        super().__init__(adapter, split=split)
        self.model, self.pairs, self.method = model, pairs, method
        _ = self.items  # an unknown split is refused here

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
        """The captions, encoded when they are first searched."""

        def sample() -> Batch:
            return visual_batch(self.pairs.visual, evenly(len(self.items), SAMPLE))

        return make_gallery(
            self.model, "text", lambda: self.pairs.sentences(CHUNK), sample=sample, method=self.method
        )

    @property
    def about(self) -> list[str]:
        """How each gallery that is encoded is searched, with the measured recall, unless exactly."""
        galleries = {"images or videos": "items_gallery", "captions": "captions_gallery"}
        encoded = {what: vars(self).get(name) for what, name in galleries.items()}
        return [f"{what}: {it.about}" for what, it in encoded.items() if it is not None and it.about]

    def find_each(self, queries: Sequence[Query], k: int) -> list[list[Hit]]:
        """Return items, each with its first caption, for a text; captions for an image or video."""
        if any(query.text is not None and query.is_visual for query in queries):
            raise InputError(
                "give a text or an image or video, not both: the run compares one with the other"
            )
        found: dict[int, list[Hit]] = {}
        for visual in {query.is_visual for query in queries}:
            gallery = self.captions_gallery if visual else self.items_gallery
            numbers = [number for number, query in enumerate(queries) if query.is_visual == visual]
            for start in range(0, len(numbers), gallery.at_once):
                part = numbers[start : start + gallery.at_once]
                batch = self._batch([queries[number] for number in part], visual=visual)
                for number, top in zip(part, gallery.best(batch, k), strict=True):
                    found[number] = self._hits(top, captions=visual)
        return [found[number] for number in range(len(queries))]

    def _batch(self, queries: Sequence[Query], *, visual: bool) -> Batch:
        if visual:
            return self.reader.visual_batch(queries)
        with contextlib.redirect_stdout(io.StringIO()):  # a parser of role graphs counts what it parsed
            return self.reader.text_batch(queries)

    def _hits(self, top: TopK, *, captions: bool) -> list[Hit]:
        hits = []
        for rank, (place, score) in enumerate(zip(*(x.tolist() for x in top), strict=True), start=1):
            item = self.items[int(self.pairs.owner_T[place]) if captions else place]
            caption = self.pairs.texts[place] if captions else item.captions[0]
            file = str(self.corpus.image_path(item)) if item.path else ""
            hits.append(Hit(rank=rank, score=score, id=item.id, file=file, caption=caption))
        return hits


class AnswerSearch(Search[Answer]):
    """Finds the most probable answers to a question about an image; the adapter is `Searchable`, too."""

    def __init__(self, adapter: Answers, model: nn.Module, *, split: str = "test") -> None:
        super().__init__(adapter, split=split)
        self.model = model

    @torch.inference_mode()
    def find_each(self, queries: Sequence[Query], k: int) -> list[list[Answer]]:
        """Return the k most probable answers to each question about the image beside it."""
        if not all(query.is_visual and not query.video for query in queries):
            raise InputError(
                "the run answers questions about images: give --image FILE or --id ID with the question"
            )
        batch = self.reader.text_batch(queries) | self.reader.visual_batch(queries)
        probability_BA = self.adapter.probabilities(self.model, on_device(batch, device_of(self.model))).cpu()
        if not torch.isfinite(probability_BA).all():
            raise InputError("the model's probabilities are not finite; it has diverged")
        order_BK = probability_BA.argsort(dim=1, descending=True, stable=True)[:, :k].tolist()
        return [
            [Answer(answer=self.adapter.choices[n], probability=float(probability_A[n])) for n in order_K]
            for order_K, probability_A in zip(order_BK, probability_BA, strict=True)
        ]
