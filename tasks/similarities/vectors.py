"""The embeddings of a batch, which similarities compare and regularisers look at: vectors of unit length."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def l2_normalise(x: Tensor) -> Tensor:
    """Divide by the norm of the last axis plus 1e-8, as the VSE family does; a zero vector stays zero."""
    return x / (x.norm(dim=-1, keepdim=True) + 1e-8)


def at_least_float32(x: Tensor) -> Tensor:
    """Bring half precision to single, and leave double as it is: scores and losses are never rounded further."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class Embeddings(NamedTuple):
    """What a branch makes of a batch: an aggregator's `Pooled`, with vectors of unit length."""

    vectors: Tensor
    """`(B, D)`, or `(B, K, D)` where an aggregator makes K, of unit length along the last axis."""
    residual: Tensor | None = None
    """`(B, K, D)`: what each of K vectors adds to a global one, where an aggregator works so; not normalised."""
