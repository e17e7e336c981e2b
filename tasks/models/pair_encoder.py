"""A retrieval model that looks at every pair of image and caption (Stefanini et al., ICPR 2020, section III)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isqrt

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm

from infra.compute.device import device_of
from infra.compute.dist import gather, gather_objects, gather_shared, gather_uneven, rank, world
from infra.data import Batch
from infra.errors import InputError
from tasks.models.base import RetrievalModel, Scored
from tasks.models.branch import Branch, pool_both
from tasks.models.embeddings import Batches
from tasks.models.padded_sets import PaddedSets, encode_sets
from tasks.objectives.base import Objective
from tasks.regularisers.base import Regulariser
from tasks.similarities.base import Similarity
from tasks.similarities.vectors import at_least_float32, l2_normalise

IMAGES, CAPTIONS = 64, 128
"""Images and captions that a split's scores are computed for at once; captions of equal length come together."""


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

    def score_batch(self, batch: Batch) -> Scored:
        """Score the global batch: each worker its own images against the captions of all."""
        text = self.encode_text(batch)
        text = text.widened(max(gather_objects(text.mask_BN.shape[1])))
        captions = PaddedSets(gather_shared(text.x_BND), gather(text.mask_BN))
        return Scored.of_batch(batch, gather(self.score(self.encode_visual(batch), captions)))

    def scorer(self, images: Batches, captions: Batches) -> PairScores:
        """Encode a split once, and return what scores any block of it."""
        device = device_of(self)
        visual = encode_sets(self.encode_visual, images, device=device)
        text = encode_sets(self.encode_text, captions, device=device)
        return PairScores(self.score, visual=visual, text=text)

    def _checkpointed(self, visual: PaddedSets, text: PaddedSets) -> Tensor:
        if not torch.is_grad_enabled():
            return self._score_block(visual, text)
        return checkpoint(self._score_block, visual, text, use_reentrant=False)

    def _score_block(self, visual: PaddedSets, text: PaddedSets) -> Tensor:
        """Return the `(V, T)` scores of a few images and captions, all pairs at once."""
        shape = len(visual.x_BND), len(text.x_BND)
        embeddings_of = self._embeddings if self.cross is None else self._crossed_embeddings
        visual_P, text_P = (
            l2_normalise(at_least_float32(embedding)) for embedding in embeddings_of(visual, text)
        )
        with torch.autocast(visual_P.device.type, enabled=False):
            return self.similarity.pairs(visual_P, text_P).view(shape)

    def _crossed_embeddings(self, visual: PaddedSets, text: PaddedSets) -> tuple[Tensor, Tensor]:
        """Return both embeddings of each pair, `(V * T, D)` or `(V * T, K, D)`, once its sets have met."""
        rows, columns = len(visual.x_BND), len(text.x_BND)
        crossed = self.cross(
            *(part.repeat_interleave(columns, dim=0) for part in visual),
            *(torch.cat([part] * rows) for part in text),
        )
        return pool_both((self.visual, self.text), (crossed[:2], crossed[2:]))

    def _embeddings(self, visual: PaddedSets, text: PaddedSets) -> tuple[Tensor, Tensor]:
        """Return the same, where the aggregators alone see both sets of a pair."""
        visual_VT, text_VT = pool_both((self.visual, self.text), (visual, text), all_pairs=True)
        return visual_VT.flatten(0, 1), text_VT.flatten(0, 1)


class PairScores:
    """Called with two slices, it returns a block of the score matrix; every worker must ask for the same blocks.

    Args:
        score: scores every image with every caption of two padded sets.
        visual: the sets of the images or videos, `(N, D)` each.
        text: the sets of the captions.
    """

    def __init__(
        self,
        score: Callable[[PaddedSets, PaddedSets], Tensor],
        *,
        visual: Sequence[Tensor],
        text: Sequence[Tensor],
    ) -> None:
        self.score, self.visual, self.text = score, visual, text
        shape, device = (len(visual), len(text)), visual[0].device
        self.sim_VT = torch.zeros(shape, device=device)
        self.known_VT = torch.zeros(shape, dtype=torch.bool, device=device)

    @torch.inference_mode()
    def __call__(self, images: slice, captions: slice) -> Tensor:
        """Return the scores of images against captions, `(V, T)`, float32; each is computed once."""
        block = images, captions
        if not self.known_VT[block].all():
            own = np.array_split(np.arange(len(self.visual))[images], world())[rank()]
            self.sim_VT[block] = gather_uneven(self._compute(own, np.arange(len(self.text))[captions]))
            self.known_VT[block] = True
        return self.sim_VT[block]

    def _compute(self, row_V: np.ndarray, column_T: np.ndarray) -> Tensor:
        sim_VT = self.sim_VT.new_empty(len(row_V), len(column_T))
        by_size_T = np.argsort([len(self.text[column]) for column in column_T], kind="stable")
        starts = range(0, len(row_V), IMAGES)
        for start in tqdm(starts, desc="scoring pairs", leave=False, delay=2, disable=rank() > 0):
            part = slice(start, start + IMAGES)
            visual = PaddedSets.pad([self.visual[row] for row in row_V[part]])
            for first in range(0, len(column_T), CAPTIONS):
                place_T = by_size_T[first : first + CAPTIONS]
                text = PaddedSets.pad([self.text[column] for column in column_T[place_T]])
                sim_VT[part, torch.from_numpy(place_T)] = self.score(visual, text).float()
        return sim_VT
