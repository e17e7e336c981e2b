"""The caption that lies nearest to each vector of an image (DivE: Kim et al., CVPR 2023, figure 4)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tasks.models.embeddings import at_least_float32, l2_normalise
from tasks.models.split_embeddings import SplitEmbeddings

_CAPTIONS = 4096  # compared at once


@dataclass(frozen=True, kw_only=True)
class Nearest:
    """A caption, by its number in the split, and the cosine of the vector and the caption's nearest one."""

    caption: int
    cosine: float


@torch.inference_mode()
def nearest_captions(embeddings: SplitEmbeddings, item: int) -> list[Nearest]:
    """Return the nearest caption of each vector of an image or video; of equally near ones the first.

    Args:
        embeddings: of a split, those of its images `(Q, K, D)`.
        item: number of the image.
    """
    embedding_KD = l2_normalise(at_least_float32(embeddings.visual[item]))
    best_K = embedding_KD.new_full((len(embedding_KD),), -torch.inf)
    caption_K = torch.zeros(len(embedding_KD), dtype=torch.long, device=embedding_KD.device)
    for first in range(0, len(embeddings.text), _CAPTIONS):
        text = l2_normalise(at_least_float32(embeddings.text[first : first + _CAPTIONS]))
        cosine_GK = text @ embedding_KD.T if text.dim() == 2 else (text @ embedding_KD.T).amax(dim=1)
        most_K, at_K = cosine_GK.max(dim=0)
        better_K = most_K > best_K
        best_K = most_K.where(better_K, best_K)
        caption_K = (first + at_K).where(better_K, caption_K)
    return [
        Nearest(caption=caption, cosine=cosine)
        for caption, cosine in zip(caption_K.tolist(), best_K.tolist(), strict=True)
    ]
