"""One modality of a split, ready to be searched by the other: by embeddings where the model has them, else pair by pair."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from infra.data import Batch
from infra.device import device_of, on_device
from infra.errors import InputError
from pipelines.searching.best import Best, best
from pipelines.searching.exact import Exact, Index
from pipelines.searching.faiss_index import Faiss
from pipelines.searching.two_pass import TwoPass
from tasks.models.base import RetrievalModel
from tasks.models.dual_encoder import DualEncoder
from tasks.models.embeddings import Batches, encode_split
from tasks.similarities.cosine import Cosine
from tasks.similarities.sets import SetSimilarity

Side = Literal["visual", "text"]
Method = Literal["auto", "exact", "two-pass", "faiss"]

MANY_SETS = 20_000  # from so many on, sets are searched in two passes


class Gallery(Protocol):
    """What can be searched."""

    def top(self, query: Batch, k: int) -> Best:
        """Return the k best for a batch of one query of the other modality."""


def make_gallery(
    model: nn.Module,
    side: Side,
    batches: Callable[[], Batches],
    *,
    sample: Callable[[], Batch],
    method: Method = "auto",
) -> Gallery:
    """Encode one side of a split.

    Args:
        model: a model of retrieval.
        side: which side is searched.
        batches: gives its samples.
        sample: gives a few queries of the other side, on which what is not exact is measured.
        method: `auto` is exact, and in two passes for many sets of vectors.

    Raises:
        InputError: the method does not fit the model.
    """
    if isinstance(model, DualEncoder):
        return EmbeddingGallery(model, side, batches(), sample=sample, method=method)
    if method in ("two-pass", "faiss"):
        raise InputError(
            f"--index {method} searches embeddings, and {type(model).__name__} looks at every pair; choose --index exact"
        )
    if isinstance(model, RetrievalModel):
        return PairGallery(model, side, batches())
    return ScoredGallery(model, side, batches)


class EmbeddingGallery:
    """SplitEmbeddings of a model of two branches, in an index."""

    def __init__(
        self, model: DualEncoder, side: Side, batches: Batches, *, sample: Callable[[], Batch], method: Method
    ) -> None:
        self.device = device_of(model)
        branch = {"visual": model.encode_visual, "text": model.encode_text}
        other = "text" if side == "visual" else "visual"
        self._encode = branch[other]
        embedding = encode_split(lambda batch: branch[side](batch).vectors, batches, device=self.device)

        def score(part: Tensor, query: Tensor) -> Tensor:
            return (
                model.similarity(part, query) if side == "visual" else model.similarity(query, part)
            ).flatten()

        self.index = self._index(model.similarity, embedding, score, sample=sample, method=method)

    @torch.inference_mode()
    def _embedding(self, batch: Batch) -> Tensor:
        return self._encode(on_device(batch, self.device)).vectors

    def _index(
        self, similarity: nn.Module, embedding: Tensor, score: Any, *, sample: Any, method: Method
    ) -> Index:
        sets = isinstance(similarity, SetSimilarity) and embedding.ndim == 3
        if method == "auto":
            method = "two-pass" if sets and len(embedding) >= MANY_SETS else "exact"
        if method == "two-pass" and not sets:
            raise InputError(
                "--index two-pass is for sets of vectors; choose exact, or faiss for single ones"
            )
        if method == "faiss" and not isinstance(similarity, Cosine):
            raise InputError("--index faiss is for single vectors and their cosine; choose exact or two-pass")
        if method == "two-pass":
            return TwoPass(embedding, score, self._embedding(sample()))
        return Faiss(embedding, self._embedding(sample())) if method == "faiss" else Exact(embedding, score)

    def top(self, query: Batch, k: int) -> Best:
        """Return the k best."""
        return self.index.top(self._embedding(query), k)


class PairGallery:
    """What a model of pairs, such as HGR, encodes of one side, held; each query is scored with all of it."""

    @torch.inference_mode()
    def __init__(self, model: RetrievalModel, side: Side, batches: Batches) -> None:
        self.model, self.side = model, side
        self.device = device_of(model)
        self._parts = [(number_B, self._encode(batch, side)) for number_B, batch in batches]

    def _encode(self, batch: Batch, side: Side) -> Any:
        encode_batch = self.model.encode_visual if side == "visual" else self.model.encode_text
        return encode_batch(on_device(batch, self.device))

    @torch.inference_mode()
    def top(self, query: Batch, k: int) -> Best:
        """Return the k best."""
        asked = self._encode(query, "text" if self.side == "visual" else "visual")
        score_G = torch.empty(sum(len(number_B) for number_B, _ in self._parts))
        for number_B, part in self._parts:
            pair = (part, asked) if self.side == "visual" else (asked, part)
            score_G[number_B] = self.model.score(*pair).float().flatten().cpu()
        return best(score_G, k)


class ScoredGallery:
    """A model that only scores whole splits: the gallery goes through it with each query."""

    def __init__(self, model: Any, side: Side, batches: Callable[[], Batches]) -> None:
        self.model, self.side, self.batches = model, side, batches

    def top(self, query: Batch, k: int) -> Best:
        """Return the k best."""
        one = [(torch.zeros(1, dtype=torch.int64), query)]
        numbers: list[int] = []

        def counted() -> Iterator[tuple[Tensor, Batch]]:
            for number_B, batch in self.batches():
                numbers.extend(number_B.tolist())
                yield number_B, batch

        pair = (counted(), one) if self.side == "visual" else (one, counted())
        score = self.model.scorer(*pair)
        whole = slice(0, max(numbers) + 1)
        block = (whole, slice(0, 1)) if self.side == "visual" else (slice(0, 1), whole)
        return best(score(*block).float().flatten().cpu(), k)
