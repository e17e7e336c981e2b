"""Sine and cosine codes of positions (Vaswani et al. 2017)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sinusoids(
    length: int, dim: int, *, device: torch.device | None = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return the `(length, dim)` codes: sine on even channels, cosine on odd, positions from 0."""
    if dim % 2:
        raise ValueError(f"position codes need an even width, not {dim}")
    position_N1 = torch.arange(length, device=device, dtype=dtype)[:, None]
    rate_H = torch.exp(torch.arange(0, dim, 2, device=device, dtype=dtype) * (-math.log(10_000.0) / dim))
    angle_NH = position_N1 * rate_H
    return torch.stack((angle_NH.sin(), angle_NH.cos()), dim=-1).flatten(1)
