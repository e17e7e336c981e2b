"""One modality of a split, ready to be searched by the other: by embeddings where the model has them, else by pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from infra.compute.device import device_of, on_device
from infra.data import Batch
from infra.errors import InputError
from pipelines.searching import Method
from pipelines.searching.indices import Exact, Faiss, Index, PairScore, TopK, TwoPass, top_k
from pipelines.searching.probed import ProbedGallery
from tasks.models.base import RetrievalModel
from tasks.models.embeddings import Batches, encode_split
from tasks.similarities.cosine import Cosine
from tasks.similarities.maxsim import MaxSim
from tasks.similarities.sets import SetSimilarity

Side = Literal["visual", "text"]

MANY_SETS = 20_000  # from so many on, sets are searched in two passes
AT_ONCE = 32  # queries that are encoded together


class Gallery(Protocol):
    """What can be searched."""

    at_once: int
    """Queries that `best` takes at most."""

    def best(self, queries: Batch, k: int) -> list[TopK]:
        """Return the k best for each query of a batch, which are of the other modality.

        Raises:
            InputError: a score is no number.
        """


def make_gallery(
    model: RetrievalModel,
    side: Side,
    batches: Callable[[], Batches],
    *,
    sample: Callable[[], Batch],
    method: Method = "auto",
) -> Gallery:
    """Encode one side of a split.

    Args:
        model: in evaluation mode.
        side: which side is searched.
        batches: gives its samples.
        sample: gives a few queries of the other side, on which what is not exact is measured.
        method: `auto` is exact, and in two passes for many sets of vectors. In two passes, a model that looks at every
            pair first looks at many, and then at few for each query.

    Raises:
        InputError: the method does not fit the model.
    """
    if model.has_embeddings:
        return EmbeddingGallery(model, side, batches(), sample=sample, method=method)
    if method == "two-pass" and model.looks_at_pairs:
        return ProbedGallery(model, side, batches(), sample())
    if method in ("two-pass", "faiss"):
        others = "exact or two-pass" if model.looks_at_pairs else "exact"
        raise InputError(
            f"--index {method} searches embeddings, and {type(model).__name__} makes none of images and captions "
            f"apart; choose --index {others}"
        )
    return PairGallery(model, side, batches())


class EmbeddingGallery:
    """The embeddings of one side, in an index.

    Args:
        model: has embeddings of each modality alone.
        side: which side is searched.
        batches: its samples.
        sample: gives a few queries of the other side.
        method: as in `make_gallery`.
    """

    at_once = AT_ONCE

    def __init__(
        self,
        model: RetrievalModel,
        side: Side,
        batches: Batches,
        *,
        sample: Callable[[], Batch],
        method: Method,
    ) -> None:
        self.device = device_of(model)
        branch = {"visual": model.encode_visual, "text": model.encode_text}
        self._encode = branch["text" if side == "visual" else "visual"]
        embedding = encode_split(lambda batch: branch[side](batch).vectors, batches, device=self.device)

        def score(part: Tensor, query: Tensor) -> Tensor:
            return model.similarity(part, query) if side == "visual" else model.similarity(query, part).T

        sets = isinstance(model.similarity, SetSimilarity | MaxSim) and embedding.ndim == 3
        if method == "auto":
            method = "two-pass" if sets and len(embedding) >= MANY_SETS else "exact"
        if method in ("two-pass", "faiss") and model.similarity.of_distributions:
            raise InputError(
                f"--index {method} is for vectors, and the model makes distributions; choose exact"
            )
        if method == "two-pass" and not sets:
            raise InputError(
                "--index two-pass is for sets of vectors; choose exact, or faiss for single ones"
            )
        if method == "faiss" and not isinstance(model.similarity, Cosine):
            raise InputError("--index faiss is for single vectors and their cosine; choose exact or two-pass")
        self.index = self._index(embedding, score, sample=sample, method=method)

    @torch.inference_mode()
    def _embedding(self, batch: Batch) -> Tensor:
        return self._encode(on_device(batch, self.device)).vectors

    def _index(
        self, embedding: Tensor, score: PairScore, *, sample: Callable[[], Batch], method: Method
    ) -> Index:
        if method == "exact":
            return Exact(embedding, score)
        queries = self._embedding(sample())
        return TwoPass(embedding, score, queries) if method == "two-pass" else Faiss(embedding, queries)

    def best(self, queries: Batch, k: int) -> list[TopK]:
        """Return the k best for each query."""
        return self.index.top(self._embedding(queries), k)


class PairGallery:
    """What a model of pairs, such as HGR, encodes of one side, held; each query is scored with all of it."""

    at_once = 1

    @torch.inference_mode()
    def __init__(self, model: RetrievalModel, side: Side, batches: Batches) -> None:
        self.model, self.side = model, side
        self.device = device_of(model)
        self._parts = [(number_B, self._encoded(batch, side)) for number_B, batch in batches]

    def _encoded(self, batch: Batch, side: Side) -> Any:
        encode_batch = self.model.encode_visual if side == "visual" else self.model.encode_text
        return encode_batch(on_device(batch, self.device))

    @torch.inference_mode()
    def best(self, queries: Batch, k: int) -> list[TopK]:
        """Return the k best for the query of a batch of one."""
        query = self._encoded(queries, "text" if self.side == "visual" else "visual")
        score_G = torch.empty(sum(len(number_B) for number_B, _ in self._parts))
        for number_B, part in self._parts:
            pair = (part, query) if self.side == "visual" else (query, part)
            score_G[number_B] = self.model.score(*pair).float().flatten().cpu()
        return [top_k(score_G, k)]
