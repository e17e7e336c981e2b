"""Sine and cosine codes of positions (Vaswani et al. 2017)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def encode_positions(position: Tensor, dim: int) -> Tensor:
    """Return the `(..., dim)` codes of positions `(...)` of a floating type: sine on even channels, cosine on odd."""
    if dim % 2:
        raise ValueError(f"position codes need an even width, not {dim}")
    step_H = torch.arange(0, dim, 2, device=position.device, dtype=position.dtype)
    angle = position[..., None] * torch.exp(step_H * (-math.log(10_000.0) / dim))
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)


def sinusoids(
    length: int, dim: int, *, device: torch.device | None = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return the `(length, dim)` codes of the positions from 0."""
    return encode_positions(torch.arange(length, device=device, dtype=dtype), dim)
