"""Similarities of codes: `(Q, D)` against `(G, D)`."""

from __future__ import annotations

from torch import Tensor


def l2_normalise(x: Tensor) -> Tensor:
    """Divide by the norm of the last axis plus 1e-8, as the VSE family does; a zero vector stays zero."""
    return x / (x.norm(dim=-1, keepdim=True) + 1e-8)


def cosine(query_QD: Tensor, gallery_GD: Tensor) -> Tensor:
    """Return the `(Q, G)` products of vectors of unit length."""
    return query_QD @ gallery_GD.T
