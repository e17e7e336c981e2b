"""Analysis of predicted sets: the circular variance of their elements, and scores of sets with fewer elements.

Source: Kim et al., "Improving cross-modal retrieval with set of diverse embeddings" (DivE), CVPR 2023, section 4.6 with
table 3, and section 4.8 with table 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from polypool.tasks.models.embeddings import SplitEmbeddings
from polypool.tasks.similarities.aligned_mean import AlignedMean
from polypool.tasks.similarities.vectors import mean_vector


def circular_variance(embedding_BKD: Tensor) -> Tensor:
    """Return 1 - |mean of a set's elements|, `(B,)`: 0 for a collapsed set, 1 for one whose elements cancel out.

    Args:
        embedding_BKD: sets of K vectors of unit length.
    """
    return 1 - mean_vector(embedding_BKD).norm(dim=-1)


def variance_of(embedding_BKD: Tensor) -> dict[str, float]:
    """Return the mean `variance` of sets and its natural logarithm, `log_variance`, as table 3 has it."""
    variance = float(circular_variance(embedding_BKD).double().mean())
    return {
        "variance": variance,
        "log_variance": math.log(max(variance, torch.finfo(embedding_BKD.dtype).tiny)),
    }


def choices(size: int) -> dict[str, list[int]]:
    """Name what is kept of sets of K elements: `only_1`, ..., `only_K`, `without_1`, ..., `without_K`.

    Without one of two is only the other, and is not listed twice.
    """
    elements = range(size)
    only = {f"only_{i + 1}": [i] for i in elements}
    without = {f"without_{i + 1}": [j for j in elements if j != i] for i in elements}
    return only | (without if size > 2 else {})


def ablated(embeddings: SplitEmbeddings) -> Iterator[tuple[str, str, SplitEmbeddings]]:
    """Yield a side, what is kept of its sets, and the embeddings with that alone.

    The side is `visual` or `text`, and the other modality keeps its whole sets; a modality of single vectors is left
    out. Where the k-th element meets the k-th alone, both lose the same one, and the side is `joint`. Sets of different
    sizes have no k-th element, and distributions have none: nothing is yielded.
    """
    if embeddings.similarity.of_any_size or embeddings.similarity.of_distributions:
        return
    sets = [modality for modality in ("visual", "text") if getattr(embeddings, modality).ndim == 3]
    aligned = isinstance(embeddings.similarity, AlignedMean)
    sides = {"joint": sets} if aligned else {modality: [modality] for modality in sets}
    for side, modalities in sides.items():
        for name, elements in choices(getattr(embeddings, modalities[0]).shape[1]).items():
            fewer = {modality: getattr(embeddings, modality)[:, elements] for modality in modalities}
            yield side, name, replace(embeddings, **fewer)
