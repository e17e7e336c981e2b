"""Alignment and uniformity of embeddings on the unit sphere.

Elements of sets count as vectors of their own. Nothing of the size of a score matrix is ever held.

Source: Wang and Isola, "Understanding contrastive representation learning through alignment and uniformity on the
hypersphere", ICML 2020, section 4; VSE+2AD, section 3.3, follows both through training.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from polypool.tasks.similarities.vectors import mean_vector, real_vectors

_CHUNK = 1 << 22  # distances held at a time


@torch.no_grad()
def alignment(visual: Tensor, text: Tensor, owner_T: np.ndarray) -> float:
    """Return the mean squared distance of an image's embedding and that of its caption: 0 at best, 4 at most.

    The mean is over all captions and, of sets, over all pairs of their elements.

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
    """Return the mean `(B, D)` of each set's elements, and that of their squared lengths `(B,)`."""
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

    0 where all are one point; spread evenly over many dimensions, near -4.

    Args:
        visual: embeddings of the images, `(N, D)` or `(N, K, D)`.
        text: embeddings of the captions, `(G, D)` or `(G, L, D)`.

    Returns:
        `visual` and `text`, each among its own, and `joint`, among all; NaN where there are no two vectors.
    """
    visual_ND, text_GD = _elements(visual), _elements(text)
    n, g = len(visual_ND), len(text_GD)
    among_visual, among_text = _among(visual_ND), _among(text_GD)
    joint = among_visual + among_text + _between(visual_ND, text_GD)
    return {
        "visual": _log_mean(among_visual, math.comb(n, 2)),
        "text": _log_mean(among_text, math.comb(g, 2)),
        "joint": _log_mean(joint, math.comb(n + g, 2)),
    }


def _log_mean(total: float, pairs: int) -> float:
    return math.log(total / pairs) if pairs else math.nan


def _among(x_ND: Tensor) -> float:
    """Sum exp(-2 d^2) over the pairs of different rows, each once."""
    rows = max(1, _CHUNK // max(1, len(x_ND)))
    starts = range(0, len(x_ND), rows)
    return sum(
        float(_potential(x_ND[i : i + rows], x_ND[i:]).triu_(1).sum(dtype=torch.double)) for i in starts
    )


def _between(x_ND: Tensor, y_MD: Tensor) -> float:
    """Sum exp(-2 d^2) over the pairs of a row of one and a row of the other."""
    rows = max(1, _CHUNK // max(1, len(y_MD)))
    starts = range(0, len(x_ND), rows)
    return sum(float(_potential(x_ND[i : i + rows], y_MD).sum(dtype=torch.double)) for i in starts)


def _potential(x_RD: Tensor, y_CD: Tensor) -> Tensor:
    square_RC = x_RD.square().sum(1)[:, None] + y_CD.square().sum(1) - 2 * x_RD @ y_CD.T
    return square_RC.clamp_(min=0).mul_(-2).exp_()
