"""Sinusoidal position encodings: of ranks (VSE-infinity), along a set and on a grid (DivE's code)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polypool.infra.compute.device import shapes_only, traced
from polypool.infra.errors import InputError

Positions = bool | tuple[int, int]
"""Positions to encode: False for none, True along the set, `(height, width)` on a grid."""


def sinusoidal(position: Tensor, dim: int) -> Tensor:
    """Return the encodings `(..., dim)` of float positions `(...)`: sine on even channels, cosine on odd ones.

    The angle of channels 2i and 2i + 1 is position / 10000^(2i / dim) (Vaswani et al. 2017).
    """
    if dim % 2:
        raise ValueError(f"encodings of positions need an even width, not {dim}")
    step_H = torch.arange(0, dim, 2, device=position.device, dtype=position.dtype)
    angle = position[..., None] * torch.exp(step_H * (-math.log(10_000.0) / dim))
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)


def encode_ranks(
    length: int, dim: int, *, device: torch.device | None = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return the encodings `(length, dim)` of the ranks 0 to `length` - 1."""
    return sinusoidal(torch.arange(length, device=device, dtype=dtype), dim)


def encode_places(positions: Positions, mask_BN: Tensor, like_BNC: Tensor) -> Tensor:
    """Return the encodings `(B, N, C)` of a set's positions, scaled to [0, 2 pi] for any size.

    Computed in float32 at least and returned in the dtype of `like_BNC`.

    Raises:
        InputError: see `encode_grid`.
    """
    dtype = torch.promote_types(like_BNC.dtype, torch.float32)
    if isinstance(positions, bool):
        encoding_BNC = encode_line(mask_BN, like_BNC.shape[-1], dtype=dtype)
    else:
        encoding_BNC = encode_grid(mask_BN, like_BNC.shape[-1], grid=positions, dtype=dtype)
    return encoding_BNC.to(like_BNC.dtype)


def encode_line(mask_BN: Tensor, dim: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the encodings `(B, N, dim)` of the 1st to n-th real element of each set."""
    size_B1 = mask_BN.sum(dim=1, keepdim=True).to(dtype)
    return sinusoidal(_turn(mask_BN.long().cumsum(dim=1).to(dtype), size_B1), dim)


def encode_grid(
    mask_BN: Tensor, dim: int, *, grid: tuple[int, int], dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return the encodings `(B, N, dim)` of cells in row-major order: half of the channels each for row and column.

    Raises:
        InputError: a set does not contain all cells of the `(height, width)` grid. On a GPU an assertion fails instead;
            tracing omits the check.
    """
    height, width = grid
    size_B = mask_BN.sum(dim=1)
    needs = f"positions={grid} needs all {height * width} cells of each image"
    if not shapes_only(mask_BN):
        wrong_B = size_B[size_B != height * width]
        if len(wrong_B):
            raise InputError(
                f"{needs}, and a set has {int(wrong_B[0])}; give the grid of the features, and train without an "
                "augmentation that drops cells"
            )
    elif not traced():
        torch._assert_async((size_B == height * width).all(), needs)  # the host does not wait for it
    cell_BN = (mask_BN.long().cumsum(dim=1) - 1).clamp(min=0)
    row_BN, column_BN = cell_BN // width + 1, cell_BN % width + 1
    halves = (_turn(row_BN.to(dtype), height), _turn(column_BN.to(dtype), width))
    return torch.cat([sinusoidal(half_BN, dim // 2) for half_BN in halves], dim=-1)


def check_positions(positions: Positions, dim: int) -> None:
    """Check the kind of positions, and that the width supports them.

    Raises:
        InputError: an unknown kind, or a width that is not a multiple of 2 (line) or 4 (grid).
    """
    on_grid = (
        isinstance(positions, tuple) and len(positions) == 2 and all(isinstance(n, int) for n in positions)
    )
    if not (isinstance(positions, bool) or (on_grid and min(positions) > 0)):
        raise InputError(f"positions must be True, False or a grid such as (7, 7), not {positions!r}")
    parts = 4 if on_grid else 2
    if positions and dim % parts:
        raise InputError(f"positions={positions} needs elements of a width that {parts} divides, not {dim}")


def _turn(position: Tensor, last: Tensor | int) -> Tensor:
    return position / (last + 1e-6) * (2 * math.pi)
