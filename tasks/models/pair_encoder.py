"""A retrieval model that looks at every pair of image and caption (Stefanini et al., ICPR 2020, section III)."""

from __future__ import annotations

from collections.abc import Iterable
from math import isqrt

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from infra.compute.device import device_of
from infra.compute.dist import gather, gather_objects, gather_shared
from infra.compute.dropout import drawn_again
from infra.data import Batch
from infra.errors import InputError
from tasks.models.base import RetrievalModel, Scored
from tasks.models.branch import Branch, pool_both, refuse_distributions
from tasks.models.embeddings import Batches
from tasks.models.padded_sets import PaddedSets, encode_sets
from tasks.models.pair_scores import PairScores
from tasks.objectives.base import Objective
from tasks.regularisers.base import Regulariser
from tasks.similarities.base import Similarity
from tasks.similarities.vectors import at_least_float32, l2_normalise


class PairEncoder(RetrievalModel):
    """Encoders of each modality, then a cross-modal encoder, aggregators and a similarity for every pair.

    Batches are those of `RetrievalModel`. A pair's two embeddings depend on both its sides: through the cross-modal
    encoder, through aggregators that need a context, or both.

    Args:
        visual: encoder and aggregator of images or videos.
        text: encoder and aggregator of captions.
        similarity: scores a pair's two embeddings.
        objective: what is minimised.
        regularisers: none; they would need embeddings of one modality alone.
        cross: lets the sets of a pair look at each other; None where the aggregators alone do.
        chunk: pairs computed at a time, 256 or, without a cross-modal encoder, 1,024 by default. In training, each part
            is computed a second time for the gradient, so that memory grows with `chunk`, not with a batch's pairs.
    """

    looks_at_pairs = True

    def __init__(
        self,
        visual: Branch,
        text: Branch,
        similarity: Similarity,
        objective: Objective,
        regularisers: Iterable[Regulariser] = (),
        *,
        cross: nn.Module | None = None,
        chunk: int | None = None,
    ) -> None:
        super().__init__(similarity, objective, regularisers)
        for branch in (visual, text):
            refuse_distributions(branch.aggregator, "a model of pairs")
            if branch.encoder.global_width:
                raise InputError(
                    f"the encoder {type(branch.encoder).__name__} makes a set and a global feature of it, and a model "
                    "of pairs has no place for a global feature; choose one that makes a set alone, such as regions or "
                    "bigru"
                )
        if visual.encoder.width != text.encoder.width:
            raise InputError(
                f"the visual encoder makes elements of width {visual.encoder.width} and the text encoder of "
                f"{text.encoder.width}; to look at each other they need the same width"
            )
        self.visual, self.text, self.cross = visual, text, cross
        self.side = isqrt(chunk or (1024 if cross is None else 256))

    def encode_visual(self, batch: Batch) -> PaddedSets:
        """Return the sets of images or videos, `(B, N, D)`."""
        return PaddedSets(*self.visual.encoder(batch["visual"], batch["visual_mask"]))

    def encode_text(self, batch: Batch) -> PaddedSets:
        """Return the sets of captions, `(B, L, D)`."""
        return PaddedSets(*self.text.encoder(batch["text"], batch["text_mask"]))

    def score(self, visual: PaddedSets, text: PaddedSets) -> Tensor:
        """Return the `(V, T)` scores of every image with every caption, in at least float32."""
        return torch.cat(
            [
                torch.cat([self._checkpointed(rows, columns) for columns in text.split(self.side)], dim=1)
                for rows in visual.split(self.side)
            ]
        )

    @torch.no_grad()
    def score_pairs(self, visual: PaddedSets, text: PaddedSets) -> Tensor:
        """Return the `(P,)` scores of the p-th image with the p-th caption, in at least float32, without gradient."""
        size = self.side**2
        parts = zip(visual.split(size), text.split(size), strict=True)
        return torch.cat([self._similarity(*self._side_by_side(*part)) for part in parts])

    def score_encoded(self, batch: Batch, visual: PaddedSets, text: PaddedSets) -> Scored:
        """Score the global batch: each worker its own images against the captions of all."""
        text = text.widened(max(gather_objects(text.mask_BN.shape[1])))
        captions = PaddedSets(gather_shared(text.x_BND), gather(text.mask_BN))
        return Scored.of_batch(batch, gather(self.score(visual, captions)))

    def scorer(self, images: Batches, captions: Batches) -> PairScores:
        """Encode a split once, and return what scores any block of it."""
        device = device_of(self)
        visual = encode_sets(self.encode_visual, images, device=device)
        text = encode_sets(self.encode_text, captions, device=device)
        return PairScores(self, visual=visual, text=text)

    def _checkpointed(self, visual: PaddedSets, text: PaddedSets) -> Tensor:
        if not torch.is_grad_enabled():
            return self._score_block(visual, text)
        return checkpoint(self._score_block, visual, text, use_reentrant=False, context_fn=drawn_again)

    def _score_block(self, visual: PaddedSets, text: PaddedSets) -> Tensor:
        """Return the `(V, T)` scores of a few images and captions, all pairs at once."""
        rows, columns = len(visual.x_BND), len(text.x_BND)
        if self.cross is None:
            pooled = pool_both((self.visual, self.text), (visual, text), all_pairs=True)
            return self._similarity(*(x_VT.flatten(0, 1) for x_VT in pooled)).view(rows, columns)
        visual = PaddedSets(*(part.repeat_interleave(columns, dim=0) for part in visual))
        text = PaddedSets(*(torch.cat([part] * rows) for part in text))
        return self._similarity(*self._side_by_side(visual, text)).view(rows, columns)

    def _side_by_side(self, visual: PaddedSets, text: PaddedSets) -> tuple[Tensor, Tensor]:
        """Return both embeddings of the p-th image with the p-th caption, `(P, D)` or `(P, K, D)`."""
        if self.cross is not None:
            crossed = self.cross(*visual, *text)
            visual, text = PaddedSets(*crossed[:2]), PaddedSets(*crossed[2:])
        return pool_both((self.visual, self.text), (visual, text))

    def _similarity(self, *embeddings_P: Tensor) -> Tensor:
        """Return the `(P,)` scores of pairs' embeddings."""
        visual_P, text_P = (l2_normalise(at_least_float32(embedding)) for embedding in embeddings_P)
        with torch.autocast(visual_P.device.type, enabled=False):
            return self.similarity.pairs(visual_P, text_P)
