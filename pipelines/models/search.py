"""Search of a split by a trained model: items for a text, captions for an image or video, answers to a question.

A query is a text, an image or video file, features, or an item of the corpus. A gallery is one modality of a split,
encoded once. Equal scores are in the order of the gallery.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from math import isqrt
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor, nn

from polypool.infra.batches import Batch, arriving
from polypool.infra.compute.device import device_of, on_device
from polypool.infra.errors import InputError
from polypool.infra.extras import needed
from polypool.infra.files import atomic, existing
from polypool.pipelines.data.extraction import FileFeatures, read_image
from polypool.tasks.abilities import Answers, Searchable
from polypool.tasks.datasets.corpus import ALL
from polypool.tasks.inputs.pairs import Pairs, visual_batch
from polypool.tasks.models.dual_encoder import Batches, encode_split
from polypool.tasks.models.retrieval_model import RetrievalModel
from polypool.tasks.similarities.similarity import Cosine, Side

Method = Literal["exact", "faiss"]
"""Search method: every score, or clusters of single vectors by faiss."""
ITEM_BATCH = 64  # batch size of items and captions
QUERY_BATCH = 32  # batch size of queries
PART = 1 << 24  # numbers of a gallery scored per step: 64 MB
RECALL_AT, MIN_RECALL = 10, 0.999  # faiss searches enough clusters for this recall@10
SAMPLE_QUERIES = 64  # for measuring the recall
EXHAUSTIVE = 20_000  # number of vectors up to which faiss searches all


@dataclass(frozen=True, kw_only=True)
class Query:
    """A query.

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

    @cached_property
    def files(self) -> FileFeatures:
        """The extractor of features of new files, with the backbone of the model's store.

        Raises:
            InputError: the model does not record the origin of its features.
        """
        return FileFeatures.for_model(self.adapter)

    def visual(self, query: Query) -> np.ndarray | Path:
        """Return the model's input for a query's image or video: features `(N, F)`, or a file for a model of pixels.

        Raises:
            InputError: a file is missing, of the wrong kind, does not decode, or its features cannot be computed; or an
                id is unknown.
        """
        if query.features is not None:
            return query.features
        if query.file is None:
            item, store = self.adapter.corpus.find(query.id), self.adapter.store
            if store is None:
                return self.adapter.corpus.image_path(item)
            (row,) = store.rows([query.id])
            return np.array(store[int(row)], np.float32)
        if self.adapter.visual_dim:
            return self.files.of(query.file, video=query.video)
        modality = self.adapter.modality
        if query.video != (modality == "video"):
            raise InputError(
                f"{query.file}: the model reads the pixels of {modality}s; give one with --{modality} FILE"
            )
        if query.video:  # decoded once, as it is read
            return existing(query.file, what="a video")
        read_image(existing(query.file, what="an image"))
        return query.file

    def visual_batch(self, queries: Sequence[Query]) -> Batch:
        """Return the images or videos of queries as a batch; raises like `visual`, or for features of another width."""
        inputs = self.adapter.visual_inputs([self.visual(query) for query in queries])
        return visual_batch(inputs, np.arange(len(queries)))

    def text_batch(self, queries: Sequence[Query]) -> Batch:
        """Return the texts of queries as a batch.

        Raises:
            InputError: a text has no word, or none that the model reads.
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

    def close(self) -> None:
        """Stop the decoding processes."""
        if "files" in vars(self):
            self.files.close()


@contextmanager
def as_file(data: bytes, *, what: str) -> Iterator[Path]:
    """Yield a path at which this process and its children can read the bytes, while the context lasts.

    It is a file in memory on Linux, elsewhere a temporary file. Errors name `what` instead of the path.
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


class TopK(NamedTuple):
    """Indices into a gallery, best first, and their scores."""

    index_K: Tensor
    score_K: Tensor


def top_k(score_G: Tensor, k: int) -> TopK:
    """Return the k best scores of a gallery, or all of a smaller one.

    Raises:
        InputError: a score is not finite.
    """
    _check_finite(score_G)
    threshold = score_G.topk(min(k, len(score_G))).values[-1]
    index_C = (score_G >= threshold).nonzero().squeeze(1)
    index_K = index_C[score_G[index_C].argsort(descending=True, stable=True)[:k]]
    return TopK(index_K, score_G[index_K])


def _check_finite(x: Tensor) -> None:
    if not torch.isfinite(x).all():
        raise InputError(
            "the model's scores or embeddings are not finite; it has diverged, or the features of the query or of the "
            "gallery hold NaN"
        )


class Exact:
    """Scores every embedding, a part at a time, by any similarity.

    Args:
        embedding: embeddings of the gallery, `(G, D)` or `(G, K, D)`.
        score: returns the scores of a part of it with queries, `(P, Q)`.
    """

    about = ""

    def __init__(self, embedding: Tensor, score: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.embedding, self.score = embedding, score

    @torch.inference_mode()
    def top(self, queries: Tensor, k: int) -> list[TopK]:
        """Return the k best for each query of `(Q, D)` or `(Q, K, D)`."""
        size = max(1, PART // self.embedding[0].numel())
        score_GQ = torch.cat([self.score(part, queries).float().cpu() for part in self.embedding.split(size)])
        return [top_k(score_G, k) for score_G in score_GQ.T]


class Faiss:
    """Inner products by faiss: of all vectors of a small gallery, else of the nearest clusters.

    Args:
        embedding_GD: the gallery's embeddings, of unit length.
        sample_SD: queries for measuring the recall of clusters.
        small: number of vectors up to which all are searched.

    Raises:
        InputError: faiss is not installed.
    """

    def __init__(self, embedding_GD: Tensor, sample_SD: Tensor, *, small: int = EXHAUSTIVE) -> None:
        with needed("faiss", otherwise="choose --index exact"):
            import faiss
        vectors_GD = _plain(embedding_GD)
        self.index = faiss.IndexFlatIP(vectors_GD.shape[1])
        self.clusters, self.recall = 0, 1.0
        if len(vectors_GD) <= small:
            self.index.add(vectors_GD)
            return
        clusters = 4 * isqrt(len(vectors_GD))
        self.index = faiss.IndexIVFFlat(self.index, vectors_GD.shape[1], clusters, faiss.METRIC_INNER_PRODUCT)
        self.index.train(vectors_GD[:: max(1, len(vectors_GD) // (50 * clusters))])
        self.index.add(vectors_GD)
        query_SD = _plain(sample_SD)
        self.index.nprobe = clusters
        exact_SK = self.index.search(query_SD, RECALL_AT)[1]
        self.clusters, self.recall = 4, 0.0
        while self.recall < MIN_RECALL:
            self.clusters = min(2 * self.clusters, clusters)
            self.index.nprobe = self.clusters
            found_SK = self.index.search(query_SD, RECALL_AT)[1]
            shared = sum(
                np.isin(found_K, exact_K).sum() for found_K, exact_K in zip(found_SK, exact_SK, strict=True)
            )
            self.recall = shared / exact_SK.size

    @property
    def about(self) -> str:
        """How many vectors are searched, and the measured recall."""
        part = f"{self.clusters:,} of {self.index.nlist:,} clusters of" if self.clusters else "all"
        return f"{part} {self.index.ntotal:,} vectors by faiss; recall@{RECALL_AT} {self.recall:.3f} of exact search"

    def top(self, queries: Tensor, k: int) -> list[TopK]:
        """Return the k best for each query of `(Q, D)`."""
        _check_finite(queries)
        k = min(k, self.index.ntotal)
        score_QK, index_QK = self.index.search(_plain(queries), k)
        if (index_QK < 0).any():  # the searched clusters have fewer than k vectors
            self.index.nprobe = self.index.nlist
            score_QK, index_QK = self.index.search(_plain(queries), k)
            self.index.nprobe = self.clusters
        order_QK = np.lexsort((index_QK, -score_QK))
        score_QK, index_QK = (np.take_along_axis(x_QK, order_QK, axis=1) for x_QK in (score_QK, index_QK))
        return [
            TopK(*found) for found in zip(torch.from_numpy(index_QK), torch.from_numpy(score_QK), strict=True)
        ]


def _plain(x: Tensor) -> np.ndarray:
    return np.ascontiguousarray(x.float().cpu().numpy())


@dataclass(frozen=True, kw_only=True)
class EmbeddingFiles:
    """NumPy files of a split's embeddings, `(S, D)` or `(S, K, D)`, float32, memory-mapped.

    Attributes:
        folder: created if missing.
        split: `CORPUS.SPLIT`.
        depends: model, settings and data, as JSON; the file for another value replaces this one.
    """

    folder: Path
    split: str
    depends: object

    def path(self, side: Side) -> Path:
        digest = hashlib.sha256(json.dumps(self.depends, sort_keys=True).encode()).hexdigest()
        return self.folder / f"{self._prefix(side)}{digest[:32]}.npy"

    def write(self, side: Side, embedding: Tensor) -> None:
        """Write the embeddings, and delete the files that they replace."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic(self.path(side)) as file:
            np.save(file, embedding.float().cpu().numpy())
        for other in self.folder.glob(f"{self._prefix(side)}*.npy"):
            if other != self.path(side):
                other.unlink(missing_ok=True)

    def _prefix(self, side: Side) -> str:
        # hyphens separate the parts of a file's name
        return quote(self.split, safe="").replace("-", "%2D") + f"-{side}-"


class EmbeddingGallery:
    """The embeddings of one side of a split, for a model that encodes each modality separately.

    Args:
        model: the model, in evaluation mode.
        side: the side that is searched.
        batches: returns its samples.
        sample: returns sample queries of the other side, for measuring recall.
        method: search method.
        files: cache of embeddings; None for no cache.

    Raises:
        InputError: faiss for other than single vectors.
    """

    batch_size = QUERY_BATCH

    def __init__(
        self,
        model: RetrievalModel,
        side: Side,
        batches: Callable[[], Batches],
        *,
        sample: Callable[[], Batch],
        method: Method,
        files: EmbeddingFiles | None,
    ) -> None:
        self.model, self.side, self.device = model, side, device_of(model)
        self.encode_item, self.encode_query = _encoders(model, side)
        if files and files.path(side).is_file():
            self.embedding = torch.from_numpy(np.load(files.path(side), mmap_mode="c")).to(self.device)
        else:
            encode = self.encode_item
            self.embedding = encode_split(lambda batch: encode(batch).vectors, batches(), device=self.device)
            if files:
                # not cached if another process writes the file, or it cannot be written
                with contextlib.suppress(InputError, OSError):
                    files.write(side, self.embedding)
        similarity = model.similarity
        if method == "exact":
            self.index = Exact(
                self.embedding,
                similarity if side == "visual" else lambda part, queries: similarity(queries, part).T,
            )
        elif isinstance(similarity, Cosine) and self.embedding.ndim == 2:
            self.index = Faiss(self.embedding, self._encoded(self.encode_query, sample()))
        else:
            raise InputError("--index faiss is for single vectors that cosines compare; choose --index exact")
        self.about = self.index.about

    @torch.inference_mode()
    def _encoded(self, encode: Callable[[Batch], Any], queries: Batch) -> Tensor:
        return encode(on_device(queries, self.device)).vectors.to(self.embedding)

    def best(self, queries: Batch, k: int) -> list[TopK]:
        """Return the k best for each query of the other modality."""
        return self.index.top(self._encoded(self.encode_query, queries), k)

    def alike(self, queries: Batch, k: int) -> list[TopK]:
        """Return the k best for each query of the same modality, by exact search."""
        among = Exact(self.embedding, self.model.similarity.between(self.side, self.side))
        return among.top(self._encoded(self.encode_item, queries), k)


class PairGallery:
    """One side of a split for a model of pairs, such as HGR, which scores a query with every sample."""

    batch_size, about = 1, ""

    @torch.inference_mode()
    def __init__(self, model: RetrievalModel, side: Side, batches: Batches) -> None:
        self.model, self.side, self.device = model, side, device_of(model)
        encode_item, self.encode_query = _encoders(model, side)
        self._parts = [(number_B, encode_item(batch)) for number_B, batch in arriving(batches, self.device)]

    @torch.inference_mode()
    def best(self, queries: Batch, k: int) -> list[TopK]:
        """Return the k best for a batch of one query of the other modality."""
        query = self.encode_query(on_device(queries, self.device))
        score_G = torch.empty(sum(len(number_B) for number_B, _ in self._parts))
        for number_B, part in self._parts:
            pair = (part, query) if self.side == "visual" else (query, part)
            score_G[number_B] = self.model.score(*pair).float().flatten().cpu()
        return [top_k(score_G, k)]

    def alike(self, queries: Batch, k: int) -> list[TopK]:
        raise InputError(
            f"a {type(self.model).__name__} scores pairs of an image or video and a text, and makes no embeddings of "
            "one alone, so that images cannot be compared with images, nor texts with texts"
        )


def _encoders(model: RetrievalModel, side: Side) -> tuple[Any, Any]:
    """Return the encoders of the gallery and of queries."""
    encoders = (model.encode_visual, model.encode_text)
    return encoders if side == "visual" else encoders[::-1]


@dataclass(frozen=True, kw_only=True)
class Hit:
    """A result: an item or caption. `file` is empty if the corpus has none."""

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
        adapter: adapter of the task, `Searchable`.
        split: split of the items.
    """

    def __init__(self, adapter: Any, *, split: str) -> None:
        self.adapter, self.split = adapter, split
        self.reader = QueryReader(adapter)

    @property
    def corpus(self) -> Any:
        """The `Corpus` or `QuestionCorpus`, opened at first use."""
        return self.adapter.corpus

    @cached_property
    def items(self) -> list[Any]:
        """The split's `Item`s or `Image`s; raises an `InputError` for an unknown split."""
        return self.corpus.items(self.split)

    def find(self, query: Query, k: int, **options: Any) -> list[Result]:
        """Return the k best results of a query, best first; `options` as for `find_each`.

        Raises:
            InputError: a missing or superfluous part of the query, a file that does not decode or whose features cannot
                be extracted, an unknown id, a text without a word, or scores that are not finite.
        """
        (results,) = self.find_each([query], k, **options)
        return results

    @abstractmethod
    def find_each(self, queries: Sequence[Query], k: int, **options: Any) -> list[list[Result]]:
        """Return the results of each query, encoded together."""

    def close(self) -> None:
        """Stop the decoding processes."""
        self.reader.close()


class RetrievalSearch(Search[Hit]):
    """Finds images or videos by text, and captions by image or video, by a `Method`.

    Args:
        adapter: adapter of the task.
        model: the model, in evaluation mode.
        pairs: reads the split; called at once unless the embeddings of its images or videos are cached.
        split: name of the split.
        method: search method.
        files: cache of embeddings; None for no cache.

    Raises:
        InputError: no such split, items without features, or faiss for a model of pairs.
    """

    def __init__(
        self,
        adapter: Searchable,
        model: RetrievalModel,
        pairs: Callable[[], Pairs],
        *,
        split: str = "test",
        method: Method = "exact",
        files: EmbeddingFiles | None = None,
    ) -> None:
        super().__init__(adapter, split=split)
        self.model, self.method, self.files, self._read = model, method, files, pairs
        if method != "exact" and not model.has_embeddings:
            raise InputError(
                f"--index {method} searches embeddings, and {type(model).__name__} makes none of images and captions "
                "apart; choose --index exact"
            )
        self.corpus.check_split(split)
        if files is None or not files.path("visual").is_file():
            _ = self.pairs

    @cached_property
    def pairs(self) -> Pairs:
        """The split's items with their captions."""
        with contextlib.redirect_stdout(io.StringIO()):  # training prints the unknown words of a corpus
            return self._read()

    @cached_property
    def items_gallery(self) -> EmbeddingGallery | PairGallery:
        """The images or videos, encoded at first use."""
        return self._gallery(
            "visual",
            lambda: self.pairs.items(ITEM_BATCH),
            lambda: self.pairs.captions.batch(_evenly(len(self.pairs.texts))),
        )

    @cached_property
    def captions_gallery(self) -> EmbeddingGallery | PairGallery:
        """The captions, encoded at first use."""
        return self._gallery(
            "text",
            lambda: self.pairs.sentences(ITEM_BATCH),
            lambda: visual_batch(self.pairs.visual, _evenly(len(self.pairs.item_ids))),
        )

    def _gallery(
        self, side: Side, batches: Callable[[], Batches], sample: Callable[[], Batch]
    ) -> EmbeddingGallery | PairGallery:
        if not self.model.has_embeddings:
            return PairGallery(self.model, side, batches())
        return EmbeddingGallery(
            self.model, side, batches, sample=sample, method=self.method, files=self.files
        )

    def searched(self, query: Query, side: Side | None = None) -> str:
        """Describe the gallery of a query, such as `60 images of the split test`."""
        of = "all splits" if self.split == ALL else f"the split {self.split}"
        if (side or ("text" if query.is_visual else "visual")) == "text":
            return f"{len(self.pairs.texts):,} captions of {of}"
        return f"{self.corpus.count(self.split):,} {self.adapter.modality}s of {of}"

    @property
    def about(self) -> list[str]:
        """Description of each encoded faiss index, with its recall; none for exact search."""
        galleries = {"images or videos": "items_gallery", "captions": "captions_gallery"}
        encoded = {what: vars(self).get(name) for what, name in galleries.items()}
        return [f"{what}: {it.about}" for what, it in encoded.items() if it is not None and it.about]

    def find_each(self, queries: Sequence[Query], k: int, *, side: Side | None = None) -> list[list[Hit]]:
        """Return items, each with its first caption, for a text; captions for an image or video.

        Args:
            queries: texts, images or videos.
            k: number of results per query.
            side: find items ("visual") or captions ("text") for every query, also of the same modality; a query by id
                does not find itself.
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
            for start in range(0, len(numbers), gallery.batch_size):
                part = [queries[number] for number in numbers[start : start + gallery.batch_size]]
                with contextlib.redirect_stdout(io.StringIO()):  # a parser of role graphs prints its counts
                    batch = (self.reader.visual_batch if visual else self.reader.text_batch)(part)
                alike = captions != visual
                best = gallery.alike(batch, k + 1) if alike else gallery.best(batch, k)
                for number, query, top in zip(numbers[start:], part, best, strict=False):
                    found[number] = self._hits(top, k, captions=captions, but=query.id if alike else "")
        return [found[number] for number in range(len(queries))]

    def _hits(self, top: TopK, k: int, *, captions: bool, but: str) -> list[Hit]:
        """Return the first k results, except the item with the id `but`."""
        indices = top.index_K.tolist()
        numbers = [int(self.pairs.owner_T[index]) for index in indices] if captions else indices
        hits: list[Hit] = []
        for item, index, score in zip(
            self.corpus.some(self.split, numbers), indices, top.score_K.tolist(), strict=True
        ):
            if item.id == but or len(hits) == k:
                continue
            caption = self.pairs.texts[index] if captions else item.captions[0]
            file = str(self.corpus.image_path(item)) if item.path else ""
            hits.append(Hit(rank=len(hits) + 1, score=score, id=item.id, file=file, caption=caption))
        return hits


def _evenly(count: int) -> np.ndarray:
    """Return up to `SAMPLE_QUERIES` numbers below `count`, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, min(count, SAMPLE_QUERIES)).round().astype(np.int64))


class AnswerSearch(Search[Answer]):
    """Finds the most probable answers to a question about an image or video; the adapter must be `Searchable`, too."""

    def __init__(self, adapter: Answers, model: nn.Module, *, split: str = "test") -> None:
        super().__init__(adapter, split=split)
        self.model = model

    def find_each(self, queries: Sequence[Query], k: int) -> list[list[Answer]]:
        """Return the k most probable answers to the question about the image or video of each query."""
        if not all(query.is_visual for query in queries):
            kind = self.reader.adapter.modality
            raise InputError(
                f"the run answers questions about {kind}s: give --{kind} FILE or --id ID with the question"
            )
        batch = self.reader.text_batch(queries) | self.reader.visual_batch(queries)
        return best_answers(self.adapter, self.model, batch, k)


@torch.inference_mode()
def best_answers(adapter: Answers, model: nn.Module, batch: Batch, k: int) -> list[list[Answer]]:
    """Return the k most probable answers to each question of a batch, best first.

    Raises:
        InputError: a probability is not finite.
    """
    probability_BA = adapter.probabilities(model, on_device(batch, device_of(model))).cpu()
    if not torch.isfinite(probability_BA).all():
        raise InputError("the model's probabilities are not finite; it has diverged")
    order_BK = probability_BA.argsort(dim=1, descending=True, stable=True)[:, :k].tolist()
    return [
        [Answer(answer=adapter.choices[n], probability=float(probability_A[n])) for n in order_K]
        for order_K, probability_A in zip(order_BK, probability_BA, strict=True)
    ]
