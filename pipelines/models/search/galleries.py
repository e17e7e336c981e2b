"""Galleries: one modality of a split, searched by the other, by embeddings where the model has them, else by pairs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from polypool.infra.batches import Batch
from polypool.infra.compute.device import device_of, on_device
from polypool.infra.errors import InputError
from polypool.pipelines.models.search import Method
from polypool.pipelines.models.search.embedding_files import EmbeddingFiles
from polypool.pipelines.models.search.faiss_index import Faiss
from polypool.pipelines.models.search.indices import AT, Exact, Index, TopK, evenly, top_k
from polypool.pipelines.models.search.two_pass import LEAST, TwoPass
from polypool.tasks.models.dual_encoder import Batches, encode_split
from polypool.tasks.models.pair_encoder import PaddedSets, PairEncoder, PairScores, encode_sets
from polypool.tasks.models.retrieval_model import RetrievalModel
from polypool.tasks.scoring.ranking.reranking import best_places, joined
from polypool.tasks.similarities.blocks import SetSimilarity
from polypool.tasks.similarities.late_interaction import MaxSim
from polypool.tasks.similarities.similarity import Cosine, Side

MANY_SETS = 20_000  # from so many on, sets are searched in two passes
AT_ONCE = 32  # queries that are encoded together


class Gallery(Protocol):
    """What can be searched."""

    at_once: int
    """Queries that `best` takes at most."""

    @property
    def about(self) -> str:
        """How it is searched, and what that finds of an exact search; empty for that itself."""

    def best(self, queries: Batch, k: int) -> list[TopK]:
        """Return the k best for each query of a batch, which are of the other modality.

        Raises:
            InputError: a score is no number.
        """

    def alike(self, queries: Batch, k: int) -> list[TopK]:
        """Return the k best for each query of a batch, which are of the same modality, of all, whatever the index.

        Raises:
            InputError: a score is no number, or the model has no embeddings of one modality alone.
        """


def make_gallery(
    model: RetrievalModel,
    side: Side,
    batches: Callable[[], Batches],
    *,
    count: Callable[[], int],
    sample: Callable[[], Batch],
    method: Method = "auto",
    files: EmbeddingFiles | None = None,
) -> Gallery:
    """Encode one side of a split.

    Args:
        model: in evaluation mode.
        side: which side is searched.
        batches: gives its samples.
        count: gives their number.
        sample: gives a few queries of the other side, on which what is not exact is measured.
        method: `auto` is exact, and in two passes for many sets of vectors. In two passes, a model that looks at every
            pair first looks at many, and then at few for each query.
        files: where embeddings are kept; None for nowhere.

    Raises:
        InputError: the method does not fit the model.
    """
    if model.has_embeddings:
        return EmbeddingGallery(model, side, batches, count=count, sample=sample, method=method, files=files)
    if method == "two-pass" and model.looks_at_pairs:
        assert isinstance(model, PairEncoder)
        return ProbedGallery(model, side, batches(), sample())
    if method not in ("auto", "exact"):
        others = "exact or two-pass" if model.looks_at_pairs else "exact"
        raise InputError(
            f"--index {method} searches embeddings, and {type(model).__name__} makes none of images and captions "
            f"apart; choose --index {others}"
        )
    return PairGallery(model, side, batches())


class _Encoders:
    """A model's encoders of what is searched and of queries, which are of the other modality."""

    def __init__(self, model: RetrievalModel, side: Side) -> None:
        self.side: Side = side
        self.model, self.visual, self.device = model, side == "visual", device_of(model)
        encoders = (model.encode_visual, model.encode_text)
        self.encode_item, self.encode_query = encoders if self.visual else encoders[::-1]

    @torch.inference_mode()
    def query(self, queries: Batch) -> Any:
        return self.encode_query(on_device(queries, self.device))

    def alike(self, queries: Batch, k: int) -> list[TopK]:
        raise InputError(
            f"a {type(self.model).__name__} scores pairs of an image or video and a text, and makes no embeddings of "
            "one alone, so that images cannot be compared with images, nor texts with texts"
        )

    def ordered(self, items: Any, queries: Any) -> tuple[Any, Any]:
        """Return what is visual first, as models compare them."""
        return (items, queries) if self.visual else (queries, items)


class EmbeddingGallery(_Encoders):
    """The embeddings of one side, in an index, for a model that has embeddings of each modality alone."""

    at_once = AT_ONCE

    def __init__(
        self,
        model: RetrievalModel,
        side: Side,
        batches: Callable[[], Batches],
        *,
        count: Callable[[], int],
        sample: Callable[[], Batch],
        method: Method,
        files: EmbeddingFiles | None,
    ) -> None:
        super().__init__(model, side)
        self.embedding = embedding = self._embeddings(batches, count, files)
        similarity = model.similarity
        sets = isinstance(similarity, SetSimilarity | MaxSim) and embedding.ndim == 3
        if method == "auto":
            method = "two-pass" if sets and len(embedding) >= MANY_SETS else "exact"
        if method != "exact" and similarity.of_distributions:
            raise InputError(
                f"--index {method} is for vectors, and the model makes distributions; choose exact"
            )
        if method in ("two-pass", "int8", "binary") and not sets:
            raise InputError(
                f"--index {method} is for sets of vectors; choose exact, or faiss for single ones"
            )
        if method == "faiss" and not (sets or isinstance(similarity, Cosine)):
            raise InputError(
                f"--index faiss is for products of vectors, and {type(similarity).__name__} is of none; choose exact"
            )

        def score(part: Tensor, query: Tensor) -> Tensor:
            sim_VT = similarity(*self.ordered(part, query))
            return sim_VT if self.visual else sim_VT.T

        self.index: Index
        if method == "exact":
            self.index = Exact(embedding, score)
        elif sets:
            kept = method if method in ("int8", "binary") else "float32"
            self.index = TwoPass(
                embedding, score, self.query(sample()).vectors, kept=kept, faiss=method == "faiss"
            )
        else:
            self.index = Faiss(embedding, self.query(sample()).vectors)

    def _embeddings(
        self, batches: Callable[[], Batches], count: Callable[[], int], files: EmbeddingFiles | None
    ) -> Tensor:
        def encode(batch: Batch) -> Tensor:
            return self.encode_item(batch).vectors

        if files is None:
            return encode_split(encode, batches(), device=self.device)
        if (embedding := files.open(self.side)) is None:
            grows = self.model.similarity.of_any_size
            # another process writes the file, or none can: then they are encoded for this search alone
            with suppress(InputError, OSError):
                files.write(self.side, encode, batches(), count=count(), grows=grows, device=self.device)
            embedding = files.open(self.side)
        if embedding is None:
            return encode_split(encode, batches(), device=self.device)
        return embedding.to(self.device)

    @property
    def about(self) -> str:
        return self.index.about

    def best(self, queries: Batch, k: int) -> list[TopK]:
        """Return the k best for each query."""
        return self.index.top(self.query(queries).vectors.to(self.embedding), k)

    @cached_property
    def _among_themselves(self) -> Exact:
        return Exact(self.embedding, self.model.similarity.between(self.side, self.side))

    @torch.inference_mode()
    def alike(self, queries: Batch, k: int) -> list[TopK]:
        """Return the k best for each query of the same modality."""
        vectors = self.encode_item(on_device(queries, self.device)).vectors
        return self._among_themselves.top(vectors.to(self.embedding), k)


class PairGallery(_Encoders):
    """What a model of pairs, such as HGR, encodes of one side, held; each query is scored with all of it."""

    at_once, about = 1, ""

    @torch.inference_mode()
    def __init__(self, model: RetrievalModel, side: Side, batches: Batches) -> None:
        super().__init__(model, side)
        self._parts = [
            (number_B, self.encode_item(on_device(batch, self.device))) for number_B, batch in batches
        ]

    @torch.inference_mode()
    def best(self, queries: Batch, k: int) -> list[TopK]:
        """Return the k best for the query of a batch of one."""
        query = self.query(queries)
        score_G = torch.empty(sum(len(number_B) for number_B, _ in self._parts))
        for number_B, part in self._parts:
            score_G[number_B] = self.model.score(*self.ordered(part, query)).float().flatten().cpu()
        return [top_k(score_G, k)]


class ProbedGallery(_Encoders):
    """One side of a split, of which the model ranks the candidates of a first pass.

    What is searched is described once by its scores with a sample of queries. A query is scored with as many probes of
    the gallery; what follows for all others, as in `tasks.scoring.ranking.reranking`, chooses candidates, and the model
    ranks these.
    """

    at_once, about = 1, ""

    @torch.inference_mode()
    def __init__(self, model: PairEncoder, side: Side, batches: Batches, sample: Batch) -> None:
        super().__init__(model, side)
        self.sets = encode_sets(self.encode_item, batches, device=self.device)
        probes = [x_ND[mask_N] for x_ND, mask_N in zip(*self.query(sample), strict=True)]
        visual, text = self.ordered(self.sets, probes)
        sim_VT = PairScores(model, visual=visual, text=text)(slice(None), slice(None)).double()
        described_GP = sim_VT if self.visual else sim_VT.T
        self.probe_P = evenly(len(self.sets), len(probes))
        self.described_PG = (described_GP @ joined(described_GP[self.probe_P])).T

    @torch.inference_mode()
    def best(self, queries: Batch, k: int) -> list[TopK]:
        """Return the k best for the query of a batch of one, as far as they are candidates."""
        query = self.query(queries)
        first_1G = self._scores(query, self.probe_P).double()[None] @ self.described_PG
        place_C = best_places(first_1G, LEAST * -(-k // AT))[0].sort().values.cpu()
        chosen, score_K = top_k(self._scores(query, place_C.numpy()).cpu(), k)
        return [TopK(place_C[chosen], score_K)]

    def _scores(self, query: PaddedSets, place_C: np.ndarray) -> Tensor:
        some = PaddedSets.pad([self.sets[place] for place in place_C])
        return self.model.score(*self.ordered(some, query)).float().flatten()
