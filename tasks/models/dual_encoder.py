"""What the retrieval tasks share: two branches that meet in one space, and their loss on the global batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from aggregators.base import Aggregator
from encoders.base import Encoder
from infra.dist import gather, rank
from infra.errors import InputError
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


class Scored(NamedTuple):
    """What a model says of the global batch."""

    sim_QG: Tensor
    """Scores of every image against every caption, in at least float32."""
    item_Q: Tensor
    """The number of each row's image."""
    row_G: Tensor
    """The row that each column belongs to."""
    visual: Embeddings | None = None
    """SplitEmbeddings of the rows, where the model has embeddings of one modality alone."""
    text: Embeddings | None = None
    """SplitEmbeddings of the columns, likewise."""


class DualEncoder(nn.Module):
    """Two branches that meet in one space.

    Batches hold `visual` and `visual_mask` of n images, `text` and `text_mask` of m captions, `item`, the number of
    each image, and `row`, the row that each caption belongs to.

    Args:
        visual: the branch of images or videos.
        text: the branch of captions.
        similarity: scores embeddings.
    """

    def __init__(self, visual: Branch, text: Branch, similarity: Similarity) -> None:
        super().__init__()
        self.visual = visual
        self.text = text
        self.similarity = similarity

    def encode_visual(self, batch: Batch) -> Embeddings:
        """Return the embeddings of images or videos."""
        return self.visual(batch["visual"], batch["visual_mask"])

    def encode_text(self, batch: Batch) -> Embeddings:
        """Return the embeddings of captions."""
        return self.text(batch["text"], batch["text_mask"])

    def forward(self, batch: Batch) -> Scored:
        """Score the global batch; every worker holds equally many images and equally many captions."""
        visual, text = (
            Embeddings(gather(embedding), None if residual is None else gather(residual))
            for embedding, residual in (self.encode_visual(batch), self.encode_text(batch))
        )
        with torch.autocast(visual.embedding.device.type, enabled=False):
            sim_QG = self.similarity(at_least_float32(visual.embedding), at_least_float32(text.embedding))
        row_M = batch["row"] + rank() * len(batch["item"])
        return Scored(sim_QG, gather(batch["item"]), gather(row_M), visual, text)

    def scorer(self, images: Batches, captions: Batches) -> SplitEmbeddings:
        """Encode a split once, and return what scores any block of it."""
        device = next(self.parameters()).device
        visual = encode(lambda batch: self.encode_visual(batch).embedding, images, device=device)
        text = encode(lambda batch: self.encode_text(batch).embedding, captions, device=device)
        return SplitEmbeddings(visual=visual, text=text, similarity=self.similarity)


def retrieval_loss(
    model: nn.Module,
    batch: Batch,
    *,
    objective: Objective,
    regularisers: Iterable[Regulariser] = (),
    epoch: float,
) -> dict[str, Tensor]:
    """Return the objective on the global batch plus the weighted regularisers, and every part of them by name.

    Pairs of one image (`item`) are never negatives of each other.
    """
    scored: Scored = model(batch)
    sim_QG = scored.sim_QG
    positive_QG = scored.item_Q[:, None] == scored.item_Q[scored.row_G][None, :]
    terms = objective(sim_QG, scored.row_G, positive_QG, epoch=epoch)
    for regulariser in regularisers:
        with torch.autocast(sim_QG.device.type, enabled=False):
            term = regulariser(_float(scored.visual), _float(scored.text))
        terms[regulariser.name] = term
        terms["loss"] = terms["loss"] + regulariser.weight * term
    with torch.no_grad():
        terms["positive_similarity"] = sim_QG.gather(0, scored.row_G[None]).mean()
        others = (~positive_QG).sum().clamp(min=1)
        terms["negative_similarity"] = sim_QG.masked_fill(positive_QG, 0.0).sum() / others
    return terms


def _float(encoded: Embeddings) -> Embeddings:
    return Embeddings(*(None if part is None else at_least_float32(part) for part in encoded))
