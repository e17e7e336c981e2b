"""Searches of a split: items for a text, captions for an image or video, answers to a question about an image."""

from __future__ import annotations

import contextlib
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import nn

from polypool.infra.batches import Batch
from polypool.infra.compute.device import device_of, on_device
from polypool.infra.errors import InputError
from polypool.pipelines.models.search import Method
from polypool.pipelines.models.search.embedding_files import EmbeddingFiles
from polypool.pipelines.models.search.galleries import Gallery, make_gallery
from polypool.pipelines.models.search.indices import TopK, evenly
from polypool.pipelines.models.search.queries import Query, QueryReader, visual_batch
from polypool.tasks.abilities import Answers, Searchable
from polypool.tasks.datasets.corpus import Corpus
from polypool.tasks.datasets.questions import QuestionCorpus
from polypool.tasks.datasets.stored_corpus import ALL
from polypool.tasks.inputs.pairs import Pairs
from polypool.tasks.models.retrieval_model import RetrievalModel
from polypool.tasks.similarities.similarity import Side

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

    def find(self, query: Query, k: int, **options: Any) -> list[Result]:
        """Return the k best results of a query, best first; options are those of `find_each`.

        Raises:
            InputError: the query lacks a part or has one too many, a file does not decode or its features cannot be
                computed, an id is unknown, a text has no word, or the model's scores are not finite.
        """
        (results,) = self.find_each([query], k, **options)
        return results

    @abstractmethod
    def find_each(self, queries: Sequence[Query], k: int, **options: Any) -> list[list[Result]]:
        """Return what `find` returns for each query; they go through the model together."""

    def close(self) -> None:
        """End the processes that decode."""
        self.reader.close()


class RetrievalSearch(Search[Hit]):
    """Finds images or videos by text, and captions by image or video, by a `method` of `make_gallery`.

    Args:
        adapter: of the task.
        model: in evaluation mode.
        pairs: gives the split; without `files`, or with none there, it is called at once.
        split: its name.
        method: of searching.
        files: where embeddings are kept; None for nowhere.

    Raises:
        InputError: no such split, or items without features.
    """

    def __init__(
        self,
        adapter: Searchable,
        model: RetrievalModel,
        pairs: Callable[[], Pairs],
        *,
        split: str = "test",
        method: Method = "auto",
        files: EmbeddingFiles | None = None,
    ) -> None:
        super().__init__(adapter, split=split)
        self.model, self.method, self.files, self._read = model, method, files, pairs
        self.corpus.check_split(split)
        if files is None or files.open("visual") is None:
            _ = self.pairs

    @property
    def corpus(self) -> Corpus:
        return self.adapter.corpus

    @cached_property
    def pairs(self) -> Pairs:
        """The split's items with their captions."""
        with contextlib.redirect_stdout(
            io.StringIO()
        ):  # what is unknown of a corpus's words is said in training
            return self._read()

    @cached_property
    def items_gallery(self) -> Gallery:
        """The images or videos, encoded when they are first searched."""
        return make_gallery(
            self.model,
            "visual",
            lambda: self.pairs.items(CHUNK),
            count=lambda: len(self.pairs.item_ids),
            sample=lambda: self.pairs.captions.batch(evenly(len(self.pairs.texts), SAMPLE)),
            method=self.method,
            files=self.files,
        )

    @cached_property
    def captions_gallery(self) -> Gallery:
        """The captions, encoded when they are first searched."""

        def sample() -> Batch:
            return visual_batch(self.pairs.visual, evenly(len(self.pairs.item_ids), SAMPLE))

        return make_gallery(
            self.model,
            "text",
            lambda: self.pairs.sentences(CHUNK),
            count=lambda: len(self.pairs.texts),
            sample=sample,
            method=self.method,
            files=self.files,
        )

    def searched(self, query: Query, side: Side | None = None) -> str:
        """Return what a query is compared with, such as `60 images of the split test`."""
        of = "all splits" if self.split == ALL else f"the split {self.split}"
        if self._side(query, side) == "text":
            return f"{len(self.pairs.texts):,} captions of {of}"
        return f"{self.corpus.count(self.split):,} {self.adapter.modality}s of {of}"

    @property
    def about(self) -> list[str]:
        """How each gallery that is encoded is searched, with the measured recall, unless exactly."""
        galleries = {"images or videos": "items_gallery", "captions": "captions_gallery"}
        encoded = {what: vars(self).get(name) for what, name in galleries.items()}
        return [f"{what}: {it.about}" for what, it in encoded.items() if it is not None and it.about]

    def find_each(self, queries: Sequence[Query], k: int, *, side: Side | None = None) -> list[list[Hit]]:
        """Return items, each with its first caption, for a text; captions for an image or video.

        Args:
            queries: texts, images or videos.
            k: results of each.
            side: finds items ("visual") or captions ("text") for every query, also for one of the same kind; an item
                that is asked for by its id is not its own result.
        """
        if any(query.text is not None and query.is_visual for query in queries):
            raise InputError(
                "give a text or an image or video, not both: the run compares one with the other"
            )
        found: dict[int, list[Hit]] = {}
        for visual in {query.is_visual for query in queries}:
            captions = (side or ("text" if visual else "visual")) == "text"
            gallery = self.captions_gallery if captions else self.items_gallery
            numbers = [number for number, query in enumerate(queries) if query.is_visual == visual]
            for start in range(0, len(numbers), gallery.at_once):
                part = [queries[number] for number in numbers[start : start + gallery.at_once]]
                batch = self._batch(part, visual=visual)
                alike = captions != visual
                best = gallery.alike(batch, k + 1) if alike else gallery.best(batch, k)
                for number, query, top in zip(numbers[start:], part, best, strict=False):
                    found[number] = self._hits(top, k, captions=captions, but=query.id if alike else "")
        return [found[number] for number in range(len(queries))]

    @staticmethod
    def _side(query: Query, side: Side | None) -> Side:
        return side or ("text" if query.is_visual else "visual")

    def _batch(self, queries: Sequence[Query], *, visual: bool) -> Batch:
        if visual:
            return self.reader.visual_batch(queries)
        with contextlib.redirect_stdout(io.StringIO()):  # a parser of role graphs counts what it parsed
            return self.reader.text_batch(queries)

    def _hits(self, top: TopK, k: int, *, captions: bool, but: str) -> list[Hit]:
        """Return the first k results, without the item that has the id `but`."""
        places = top.place_K.tolist()
        numbers = [int(self.pairs.owner_T[place]) for place in places] if captions else places
        hits: list[Hit] = []
        for item, place, score in zip(
            self.corpus.some(self.split, numbers), places, top.score_K.tolist(), strict=True
        ):
            if item.id == but or len(hits) == k:
                continue
            caption = self.pairs.texts[place] if captions else item.captions[0]
            file = str(self.corpus.image_path(item)) if item.path else ""
            hits.append(Hit(rank=len(hits) + 1, score=score, id=item.id, file=file, caption=caption))
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
