"""Embedding diagnostics: alignment and uniformity on the unit sphere, variance within sets, sets with fewer elements.

Elements of sets count as separate vectors. Memory stays below the size of a score matrix.

Sources: Wang and Isola, "Understanding contrastive representation learning through alignment and uniformity on the
hypersphere", ICML 2020, section 4, and VSE+2AD, section 3.3, which follows both through training; for sets Kim et al.,
"Improving cross-modal retrieval with set of diverse embeddings" (DivE), CVPR 2023, tables 3 and 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from polypool.tasks.models.dual_encoder import SplitEmbeddings
from polypool.tasks.similarities.of_sets import AlignedMean
from polypool.tasks.similarities.vectors import mean_vector, real_vectors

_CHUNK = 1 << 22  # distances per block


@torch.no_grad()
def alignment(visual: Tensor, text: Tensor, owner_T: np.ndarray) -> float:
    """Return the mean squared distance between an image's and its captions' embeddings, from 0 (best) to 4.

    The mean is over all captions and, for sets, over all pairs of their elements.

    Args:
        visual: embeddings of the images, `(N, D)` or `(N, K, D)`.
        text: embeddings of the captions, `(G, D)` or `(G, L, D)`.
        owner_T: the image of each caption.
    """
    (image_ND, image_N), (caption_GD, caption_G) = _moments(visual), _moments(text)
    owner_G = torch.from_numpy(np.asarray(owner_T)).to(visual.device)
    distance_G = image_N[owner_G] + caption_G - 2 * torch.einsum("gd,gd->g", image_ND[owner_G], caption_GD)
    return float(distance_G.double().mean())


def _moments(embedding: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of each set's elements `(B, D)`, and their mean squared norm `(B,)`."""
    if embedding.ndim == 2:
        return embedding, embedding.square().sum(dim=1)
    real_B = real_vectors(embedding).sum(dim=1).clamp(min=1)
    return mean_vector(embedding), embedding.square().sum(dim=(1, 2)) / real_B


def _elements(embedding: Tensor) -> Tensor:
    """Return single vectors, or the elements of all sets, as rows."""
    return embedding if embedding.ndim == 2 else embedding[real_vectors(embedding)]


@torch.no_grad()
def uniformity(visual: Tensor, text: Tensor) -> dict[str, float]:
    """Return the log of the mean of exp(-2 d^2) over pairs of different vectors at distance d; lower is more uniform.

    0 if all vectors are equal; near -4 for a uniform distribution in many dimensions.

    Args:
        visual: embeddings of the images, `(N, D)` or `(N, K, D)`.
        text: embeddings of the captions, `(G, D)` or `(G, L, D)`.

    Returns:
        `visual` and `text` within each modality, and `joint` over all vectors; NaN for fewer than two vectors.
    """
    visual_ND, text_GD = _elements(visual), _elements(text)
    n, g = len(visual_ND), len(text_GD)
    among_visual, among_text = _total(visual_ND, visual_ND), _total(text_GD, text_GD)
    joint = among_visual + among_text + _total(visual_ND, text_GD)
    return {
        "visual": _log_mean(among_visual, math.comb(n, 2)),
        "text": _log_mean(among_text, math.comb(g, 2)),
        "joint": _log_mean(joint, math.comb(n + g, 2)),
    }


def _log_mean(total: float, pairs: int) -> float:
    return math.log(total / pairs) if pairs else math.nan


def _total(x_ND: Tensor, y_MD: Tensor) -> float:
    """Sum exp(-2 d^2) over the pairs of a row of one and a row of the other; within one, over its pairs of rows."""
    rows, total = max(1, _CHUNK // max(1, len(y_MD))), 0.0
    for start in range(0, len(x_ND), rows):
        x_RD, y_CD = x_ND[start : start + rows], y_MD[start:] if y_MD is x_ND else y_MD
        square_RC = x_RD.square().sum(1)[:, None] + y_CD.square().sum(1) - 2 * x_RD @ y_CD.T
        potential_RC = square_RC.clamp_(min=0).mul_(-2).exp_()
        total += float((potential_RC.triu_(1) if y_MD is x_ND else potential_RC).sum(dtype=torch.double))
    return total


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
    """Name the ablations of sets of K elements: `only_1`, ..., `only_K`, `without_1`, ..., `without_K`.

    For K = 2, without one element is the same as only the other, and is not listed again.
    """
    elements = range(size)
    only = {f"only_{i + 1}": [i] for i in elements}
    without = {f"without_{i + 1}": [j for j in elements if j != i] for i in elements}
    return only | (without if size > 2 else {})


def ablated(embeddings: SplitEmbeddings) -> Iterator[tuple[str, str, SplitEmbeddings]]:
    """Yield a side, the name of an ablation, and the ablated embeddings.

    The side is `visual` or `text`, and the other modality keeps its whole sets; a modality of single vectors is
    skipped. If the similarity only compares elements at equal positions, both sides are ablated equally, and the side
    is `joint`. Sets of different sizes have no k-th element, and distributions have no elements: nothing is yielded.
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
