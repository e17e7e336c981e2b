"""A retrieval model of two branches that meet in one space."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from aggregators.base import Aggregator
from encoders.base import Encoder
from infra.device import device_of
from infra.dist import gather
from infra.errors import InputError
from tasks.models.base import RetrievalModel, Scored
from tasks.models.embeddings import Embeddings, at_least_float32, l2_normalise
from tasks.models.split_embeddings import Batch, Batches, SplitEmbeddings, encode
from tasks.objectives.base import Objective
from tasks.regularisers.base import Regulariser
from tasks.similarities.base import Similarity


class Branch(nn.Module):
    """One modality: inputs -> set -> code of unit length.

    Args:
        encoder: makes the set.
        aggregator: makes a vector of it, or a few.
    """

    def __init__(self, encoder: Encoder, aggregator: Aggregator) -> None:
        super().__init__()
        if encoder.global_width and not aggregator.takes_global_feature:
            raise InputError(
                f"the encoder {type(encoder).__name__} makes a set and a global feature of it, and the aggregator "
                f"{type(aggregator).__name__} has no place for a global feature; choose one that has, such as slots or pie, "
                "or an encoder that makes a set alone"
            )
        self.encoder = encoder
        self.aggregator = aggregator
        if encoder.global_width not in (0, self.width):
            raise InputError(
                f"the encoder {type(encoder).__name__} makes a global feature of width {encoder.global_width}, and the "
                f"aggregator {type(aggregator).__name__} vectors of width {self.width}, which are added to it: give "
                f"the aggregator width={encoder.global_width}"
            )

    @property
    def width(self) -> int:
        """Width D of the embeddings."""
        return self.aggregator.width or self.encoder.width

    def forward(self, x: Tensor, mask_BN: Tensor) -> Embeddings:
        """Return the embeddings, `(B, D)` or `(B, K, D)`, and the aggregator's residual where it has one."""
        result, residual_BKD = self.aggregator.with_residual(*self.encoder(x, mask_BN))
        return Embeddings(l2_normalise(result), residual_BKD)


class DualEncoder(RetrievalModel):
    """Two branches that meet in one space; batches are those of `RetrievalModel`.

    Args:
        visual: the branch of images or videos.
        text: the branch of captions.
        similarity: scores embeddings.
        objective: what is minimised.
        regularisers: terms beside it.
    """

    has_embeddings = True

    def __init__(
        self,
        visual: Branch,
        text: Branch,
        similarity: Similarity,
        objective: Objective,
        regularisers: Iterable[Regulariser] = (),
    ) -> None:
        super().__init__(similarity, objective, regularisers)
        self.visual = visual
        self.text = text

    def encode_visual(self, batch: Batch) -> Embeddings:
        """Return the embeddings of images or videos."""
        return self.visual(batch["visual"], batch["visual_mask"])

    def encode_text(self, batch: Batch) -> Embeddings:
        """Return the embeddings of captions."""
        return self.text(batch["text"], batch["text_mask"])

    def score(self, visual: Embeddings, text: Embeddings) -> Tensor:
        """Return the `(V, T)` scores of all images or videos with all captions, in at least float32."""
        with torch.autocast(visual.embedding.device.type, enabled=False):
            return self.similarity(at_least_float32(visual.embedding), at_least_float32(text.embedding))

    def score_batch(self, batch: Batch) -> Scored:
        """Score the global batch; every worker computes all of it."""
        visual, text = (
            Embeddings(gather(embedding), None if residual is None else gather(residual))
            for embedding, residual in (self.encode_visual(batch), self.encode_text(batch))
        )
        return Scored.of_batch(batch, self.score(visual, text), visual=visual, text=text)

    def scorer(self, images: Batches, captions: Batches) -> SplitEmbeddings:
        """Encode a split once, and return what scores any block of it."""
        device = device_of(self)
        visual = encode(lambda batch: self.encode_visual(batch).embedding, images, device=device)
        text = encode(lambda batch: self.encode_text(batch).embedding, captions, device=device)
        return SplitEmbeddings(visual=visual, text=text, similarity=self.similarity)
