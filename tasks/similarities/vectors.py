"""Embeddings of a batch, for similarities and regularisers: unit vectors, or Gaussians with unit means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


def l2_normalise(x: Tensor) -> Tensor:
    """Divide by the norm of the last axis plus 1e-8, as the VSE family does; a zero vector stays zero."""
    return x / (x.norm(dim=-1, keepdim=True) + 1e-8)


def at_least_float32(x: Tensor) -> Tensor:
    """Convert half precision to float32, and keep float64: scores and losses are not rounded further."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def real_vectors(x_BKD: Tensor) -> Tensor:
    """Return the mask of sets' elements, `(B, K)`: zero vectors are padding."""
    return torch.linalg.vector_norm(x_BKD.detach(), dim=-1) != 0  # half the time of `any`


def first_of(embedding: Tensor, k: int) -> Tensor:
    """Return the first `k` vectors of sets, `(B, K, D)`; single vectors `(B, D)` unchanged."""
    return embedding if embedding.ndim == 2 else embedding[:, :k]


def widened(x_BKD: Tensor, size: int) -> Tensor:
    """Pad sets with zero vectors to `size` elements."""
    return F.pad(x_BKD, (0, 0, 0, size - x_BKD.shape[1]))


def side_by_side(embeddings: Sequence[Tensor]) -> Tensor:
    """Concatenate batches of embeddings, `(B, D)` or `(B, K, D)`; K may differ."""
    if embeddings[0].ndim == 2:
        return torch.cat(list(embeddings))
    size = max(x_BKD.shape[1] for x_BKD in embeddings)
    return torch.cat([widened(x_BKD, size) for x_BKD in embeddings])


def mean_and_log_variance(embedding: Tensor) -> tuple[Tensor, Tensor]:
    """Return both parts of distributions `(B, 2, D)`, each `(B, D)`."""
    assert embedding.ndim == 3, "Parts.similarity refuses vectors"
    mean_BD, log_variance_BD = embedding.unbind(dim=1)
    return mean_BD, log_variance_BD


def uncertainty(log_variance_BD: Tensor) -> Tensor:
    """Return the sum of the variances of all channels, `(B,)`, in at least float32."""
    return at_least_float32(log_variance_BD).exp().sum(dim=-1)


def mean_vector(embedding: Tensor) -> Tensor:
    """Return the mean of each set's elements, `(B, D)`; single vectors unchanged."""
    if embedding.ndim == 2:
        return embedding
    return embedding.sum(dim=1) / real_vectors(embedding).sum(dim=1, keepdim=True).clamp(min=1)


class Embeddings(NamedTuple):
    """A branch's output for a batch: an aggregator's `Pooled` with unit vectors.

    Attributes:
        vectors: `(B, D)`, or `(B, K, D)` for aggregators with K vectors, of unit length along the last axis, with zero
            vectors as padding of sets of different sizes. For distributions `(B, 2, D)`: the mean, of unit length, and
            the unnormalised log-variance, in at least float32.
        residual: `(B, K, D)`, the residual that each of K vectors adds to a global feature, not normalised; or None.
        global_feature: `(B, D)`, that global feature, not normalised; or None.
    """

    vectors: Tensor
    residual: Tensor | None = None
    global_feature: Tensor | None = None

    def map(self, function: Callable[[Tensor], Tensor]) -> Embeddings:
        """Apply a function to each part."""
        others = (None if part is None else function(part) for part in self[1:])
        return Embeddings(function(self.vectors), *others)
