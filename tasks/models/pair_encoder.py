"""Cross-encoder: a retrieval model of image-caption pairs (Stefanini et al., ICPR 2020, section III)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isqrt
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from polypool.infra.batches import Batch, arriving
from polypool.infra.compute.device import device_of
from polypool.infra.compute.dist import gather, gather_objects, gather_shared, gather_uneven, rank, world
from polypool.infra.compute.dropout import drawn_again
from polypool.infra.process.progress import Progress
from polypool.tasks.models.branch import (
    Branch,
    check_widths,
    pool_both,
    refuse_distributions,
    refuse_global_feature,
)
from polypool.tasks.models.dual_encoder import sample_positions
from polypool.tasks.models.retrieval_model import Batches, RetrievalModel, Scored
from polypool.tasks.objectives.objective import Objective
from polypool.tasks.objectives.regularisers import Regulariser
from polypool.tasks.similarities.similarity import Similarity
from polypool.tasks.similarities.vectors import at_least_float32, l2_normalise


class PaddedSets(NamedTuple):
    """Padded sets.

    Attributes:
        x_BND: the elements.
        mask_BN: True for real elements.
    """

    x_BND: Tensor
    mask_BN: Tensor

    @classmethod
    def pad(cls, sets: Sequence[Tensor]) -> PaddedSets:
        """Pad `(N, D)` sets of any sizes to a batch."""
        size_B = torch.tensor([len(x_ND) for x_ND in sets], device=sets[0].device)
        x_BND = pad_sequence(list(sets), batch_first=True)
        return cls(x_BND, torch.arange(x_BND.shape[1], device=size_B.device) < size_B[:, None])

    def widened(self, size: int) -> PaddedSets:
        """Pad the sets further, to `size` elements."""
        more = size - self.mask_BN.shape[1]
        return PaddedSets(F.pad(self.x_BND, (0, 0, 0, more)), F.pad(self.mask_BN, (0, more)))

    def split(self, size: int) -> list[PaddedSets]:
        return [
            PaddedSets(*part) for part in zip(self.x_BND.split(size), self.mask_BN.split(size), strict=True)
        ]


@torch.inference_mode()
def encode_sets(
    encode_batch: Callable[[Batch], PaddedSets], batches: Batches, *, device: torch.device
) -> list[Tensor]:
    """Encode all batches and return the sets of all workers, `(N, D)` each, by sample index."""
    numbers, elements, sizes = [], [], []
    for number_B, batch in arriving(batches, device):
        x_BND, mask_BN = encode_batch(batch)
        numbers.append(number_B.to(device))
        elements.append(x_BND[mask_BN])
        sizes.append(mask_BN.sum(dim=1))
    sets = gather_uneven(torch.cat(elements)).split(gather_uneven(torch.cat(sizes)).tolist())
    return [sets[place] for place in sample_positions(torch.cat(numbers)).tolist()]


class PairEncoder(RetrievalModel):
    """Encoders of each modality, then a cross-modal encoder, aggregators and a similarity for every pair.

    Batches are as in `RetrievalModel`. A pair's two embeddings depend on both sides: through the cross-modal encoder,
    through aggregators that need a context, or both.

    Args:
        visual: encoder and aggregator of images or videos.
        text: encoder and aggregator of captions.
        similarity: scores a pair's two embeddings.
        objective: loss on the scores.
        regularisers: must be empty, because embeddings depend on the pair.
        cross: cross-modal encoder of a pair's sets, or None if aggregators use the context.
        chunk: pairs per forward pass, 256 or, without a cross-modal encoder, 1,024 by default. In training each chunk
            is recomputed for the gradient, so memory depends on `chunk` instead of the batch's number of pairs.
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
            refuse_global_feature(branch.encoder, "a model of pairs", others="regions or bigru")
        check_widths(visual.encoder.width, text.encoder.width)
        self.visual, self.text, self.cross = visual, text, cross
        self.side = isqrt(chunk or (1024 if cross is None else 256))

    def encode_visual(self, batch: Batch) -> PaddedSets:
        """Return the sets of images or videos, `(B, N, D)`."""
        return PaddedSets(*self.visual.encoder(batch["visual"], batch["visual_mask"]))

    def encode_text(self, batch: Batch) -> PaddedSets:
        """Return the sets of captions, `(B, L, D)`."""
        return PaddedSets(*self.text.encoder(batch["text"], batch["text_mask"]))

    def score(self, visual: PaddedSets, text: PaddedSets) -> Tensor:
        return torch.cat(
            [
                torch.cat([self._checkpointed(rows, columns) for columns in text.split(self.side)], dim=1)
                for rows in visual.split(self.side)
            ]
        )

    def score_encoded(self, batch: Batch, visual: PaddedSets, text: PaddedSets) -> Scored:
        """Score the global batch: each worker scores its images against the captions of all workers."""
        text = text.widened(max(gather_objects(text.mask_BN.shape[1])))
        captions = PaddedSets(gather_shared(text.x_BND), gather(text.mask_BN))
        return Scored.of_batch(batch, gather(self.score(visual, captions)))

    def scorer(self, images: Batches, captions: Batches) -> PairScores:
        device = device_of(self)
        visual = encode_sets(self.encode_visual, images, device=device)
        text = encode_sets(self.encode_text, captions, device=device)
        return PairScores(self, visual=visual, text=text)

    def _checkpointed(self, visual: PaddedSets, text: PaddedSets) -> Tensor:
        if not torch.is_grad_enabled():
            return self._score_block(visual, text)
        return checkpoint(self._score_block, visual, text, use_reentrant=False, context_fn=drawn_again)

    def _score_block(self, visual: PaddedSets, text: PaddedSets) -> Tensor:
        """Return the scores `(V, T)` of a few images and captions, all pairs in one pass."""
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


# Images and captions of a split that are scored together; captions are sorted by length.
IMAGES, CAPTIONS = 64, 128


class PairScores:
    """Block-wise scores of a split; each score is computed once, unless blocks overlap.

    Every worker must request the same blocks.

    Args:
        model: scores every image with every caption of two padded sets.
        visual: the sets of the images or videos, `(N, D)` each.
        text: the sets of the captions.
    """

    def __init__(self, model: PairEncoder, *, visual: Sequence[Tensor], text: Sequence[Tensor]) -> None:
        self.model, self.visual, self.text = model, visual, text
        shape, device = (len(visual), len(text)), visual[0].device
        self.sim_VT = torch.zeros(shape, device=device)
        self.known_VT = torch.zeros(shape, dtype=torch.bool, device=device)

    def __call__(self, images: slice, captions: slice) -> Tensor:
        row_V, column_T = np.arange(len(self.visual))[images], np.arange(len(self.text))[captions]
        return self._block((images, captions), row_V, column_T)

    def of_all(self, row_V: np.ndarray, column_T: np.ndarray) -> Tensor:
        return self._block(np.ix_(row_V, column_T), row_V, column_T)

    @torch.inference_mode()
    def _block(self, block: tuple, row_V: np.ndarray, column_T: np.ndarray) -> Tensor:
        if not self.known_VT[block].all():
            own_V = np.array_split(row_V, world())[rank()]
            self.sim_VT[block] = gather_uneven(self._compute(own_V, column_T))
            self.known_VT[block] = True
        return self.sim_VT[block]

    def _compute(self, row_V: np.ndarray, column_T: np.ndarray) -> Tensor:
        sim_VT = self.sim_VT.new_empty(len(row_V), len(column_T))
        by_size_T = np.argsort([len(self.text[column]) for column in column_T], kind="stable")
        starts = range(0, len(row_V), IMAGES)
        for start in Progress(starts, desc="scoring pairs", leave=False, disable=rank() > 0):
            part = slice(start, start + IMAGES)
            visual = PaddedSets.pad([self.visual[row] for row in row_V[part]])
            for first in range(0, len(column_T), CAPTIONS):
                place_T = by_size_T[first : first + CAPTIONS]
                text = PaddedSets.pad([self.text[column] for column in column_T[place_T]])
                sim_VT[part, torch.from_numpy(place_T)] = self.model.score(visual, text).float()
        return sim_VT
