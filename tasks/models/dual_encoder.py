"""Dual encoder: two branches with a common embedding space, and the embeddings of whole splits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from polypool.infra.batches import Batch, arriving
from polypool.infra.compute.device import device_of
from polypool.infra.compute.dist import gather, gather_objects, gather_uneven, world
from polypool.infra.errors import InputError
from polypool.tasks.models.retrieval_model import Batches, RetrievalModel, Scored
from polypool.tasks.objectives.objective import Objective
from polypool.tasks.objectives.regularisers import Regulariser
from polypool.tasks.similarities.similarity import Side, Similarity
from polypool.tasks.similarities.vectors import (
    Embeddings,
    at_least_float32,
    first_of,
    mean_and_log_variance,
    real_vectors,
    side_by_side,
    uncertainty,
    widened,
)


@torch.inference_mode()
def encode_split(
    encode_batch: Callable[[Batch], Tensor], batches: Batches, *, device: torch.device
) -> Tensor:
    """Encode all batches and return the embeddings of all workers, `(S, D)` or `(S, K, D)`, by sample index."""
    numbers, embeddings = [], []
    for number_B, batch in arriving(batches, device):
        numbers.append(number_B)
        embeddings.append(encode_batch(batch))
    embedding = as_wide_everywhere(side_by_side(embeddings))
    return gather_uneven(embedding)[sample_positions(torch.cat(numbers).to(device))]


def as_wide_everywhere(embedding: Tensor) -> Tensor:
    """Pad sets with zero vectors to the maximum size over all workers, so that they can be gathered."""
    if embedding.ndim == 2 or world() == 1:
        return embedding
    return widened(embedding, max(gather_objects(embedding.shape[1])))


def sample_positions(number_B: Tensor) -> Tensor:
    """Return the index of each sample in the concatenation of all workers' samples, `(S,)`.

    Args:
        number_B: indices of this worker's samples, in its order; a sample encoded twice may have either position.
    """
    number_S = gather_uneven(number_B)
    place_S = torch.empty_like(number_S)
    place_S[number_S] = torch.arange(len(number_S), device=number_S.device)
    return place_S[: int(number_S.max()) + 1]


@dataclass(frozen=True, kw_only=True)
class SplitEmbeddings:
    """A split's embeddings; called with two slices, it returns a block of the score matrix.

    Attributes:
        visual: embeddings of the images or videos, `(V, D)` or `(V, K, D)`; `(V, 2, D)`, means and log-variances, for
            similarities of distributions.
        text: embeddings of the captions, `(T, D)`, `(T, K, D)` or `(T, 2, D)`.
        similarity: of the model.
    """

    visual: Tensor
    text: Tensor
    similarity: Similarity

    def __call__(self, images: slice, captions: slice) -> Tensor:
        return self._score("visual", images, "text", captions)

    def of_images(self, rows: slice, columns: slice) -> Tensor:
        return self._score("visual", rows, "visual", columns)

    def of_captions(self, rows: slice, columns: slice) -> Tensor:
        return self._score("text", rows, "text", columns)

    def first(self, k: int) -> SplitEmbeddings:
        """Return the split with the first `k` vectors of each set; smaller sets are kept whole.

        Raises:
            InputError: no set has as many, or the embeddings are not sets.
        """
        sizes = [1 if side.ndim == 2 else side.shape[1] for side in (self.visual, self.text)]
        if not self.similarity.of_sets or k > max(sizes):
            raise InputError(
                f"cannot compare the first {k} vectors: this model has {sizes[0]} per image or video and {sizes[1]} "
                "per text; train one with more, such as --model matryoshka --aggregator 'map(k=16)'"
            )
        return replace(self, visual=first_of(self.visual, k), text=first_of(self.text, k))

    def uncertainty(self) -> tuple[Tensor, Tensor] | None:
        """Return the sum of the variances of each image or video `(V,)` and of each caption `(T,)`.

        None unless embeddings are distributions.
        """
        if not self.similarity.of_distributions:
            return None
        visual_V, text_T = (uncertainty(mean_and_log_variance(side)[1]) for side in (self.visual, self.text))
        return visual_V, text_T

    def item_bytes(self) -> float:
        """Return the mean size of an image's or video's embeddings in bytes, without zero vectors used as padding."""
        vectors = float(math.prod(self.visual.shape[1:-1]))
        if self.similarity.of_any_size and self.visual.ndim == 3:
            vectors = float(real_vectors(self.visual).sum(dim=1).double().mean())
        return vectors * self.visual.shape[-1] * self.visual.element_size()

    @torch.inference_mode()
    def _score(self, query: Side, rows: slice, gallery: Side, columns: slice) -> Tensor:
        of = {"visual": self.visual, "text": self.text}
        return self.similarity.between(query, gallery)(of[query][rows], of[gallery][columns]).float()


class DualEncoder(RetrievalModel):
    """Two branches with a common embedding space; batches are as in `RetrievalModel`.

    Args:
        visual: the branch of images or videos, or a module with a branch's `forward`.
        text: the branch of captions, or such a module.
        similarity: scores embeddings.
        objective: loss on the scores.
        regularisers: further loss terms.
    """

    has_embeddings = True

    def __init__(
        self,
        visual: nn.Module,
        text: nn.Module,
        similarity: Similarity,
        objective: Objective,
        regularisers: Iterable[Regulariser] = (),
    ) -> None:
        super().__init__(similarity, objective, regularisers)
        self.visual = visual
        self.text = text

    def encode_visual(self, batch: Batch) -> Embeddings:
        return self.visual(batch["visual"], batch["visual_mask"])

    def encode_text(self, batch: Batch) -> Embeddings:
        return self.text(batch["text"], batch["text_mask"])

    def score(self, visual: Embeddings, text: Embeddings) -> Tensor:
        with torch.autocast(visual.vectors.device.type, enabled=False):
            return self.similarity(at_least_float32(visual.vectors), at_least_float32(text.vectors))

    def score_encoded(self, batch: Batch, visual: Embeddings, text: Embeddings) -> Scored:
        """Score the global batch; every worker computes all of it."""
        visual, text = (side.map(as_wide_everywhere).map(gather) for side in (visual, text))
        return Scored.of_batch(batch, self.score(visual, text), visual=visual, text=text)

    def scorer(self, images: Batches, captions: Batches) -> SplitEmbeddings:
        device = device_of(self)
        visual = encode_split(lambda batch: self.encode_visual(batch).vectors, images, device=device)
        text = encode_split(lambda batch: self.encode_text(batch).vectors, captions, device=device)
        return SplitEmbeddings(visual=visual, text=text, similarity=self.similarity)
