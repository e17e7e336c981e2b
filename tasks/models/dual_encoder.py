"""A retrieval model of two branches that meet in one space."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from polypool.infra.batches import Batch
from polypool.infra.compute.device import device_of
from polypool.infra.compute.dist import gather
from polypool.tasks.models.branch import Branch
from polypool.tasks.models.embeddings import Batches, SplitEmbeddings, as_wide_everywhere, encode_split
from polypool.tasks.models.retrieval_model import RetrievalModel, Scored
from polypool.tasks.objectives.objective import Objective
from polypool.tasks.objectives.regularisers import Regulariser
from polypool.tasks.similarities.similarity import Similarity
from polypool.tasks.similarities.vectors import Embeddings, at_least_float32


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
        return self.visual(batch["visual"], batch["visual_mask"])

    def encode_text(self, batch: Batch) -> Embeddings:
        return self.text(batch["text"], batch["text_mask"])

    def score(self, visual: Embeddings, text: Embeddings) -> Tensor:
        with torch.autocast(visual.vectors.device.type, enabled=False):
            return self.similarity(at_least_float32(visual.vectors), at_least_float32(text.vectors))

    def score_encoded(self, batch: Batch, visual: Embeddings, text: Embeddings) -> Scored:
        """Score the global batch; every worker computes all of it."""
        visual, text = (
            Embeddings(
                gather(as_wide_everywhere(embedding)),
                None if residual is None else gather(as_wide_everywhere(residual)),
            )
            for embedding, residual in (visual, text)
        )
        return Scored.of_batch(batch, self.score(visual, text), visual=visual, text=text)

    def scorer(self, images: Batches, captions: Batches) -> SplitEmbeddings:
        device = device_of(self)
        visual = encode_split(lambda batch: self.encode_visual(batch).vectors, images, device=device)
        text = encode_split(lambda batch: self.encode_text(batch).vectors, captions, device=device)
        return SplitEmbeddings(visual=visual, text=text, similarity=self.similarity)
