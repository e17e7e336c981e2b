"""Codes of positions scaled to one turn, so that they do not depend on how large a set is (DivE's code)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from aggregators.ranks.positions import encode_positions
from infra.errors import InputError

Positions = bool | tuple[int, int]
"""Of which places the codes are: none, those along a line, or those on a grid of `(height, width)`."""


def check_positions(positions: Positions, dim: int) -> None:
    """Refuse what is no kind of positions, or a width that has no codes of them.

    Raises:
        InputError: likewise.
    """
    on_grid = (
        isinstance(positions, tuple) and len(positions) == 2 and all(isinstance(n, int) for n in positions)
    )
    if not (isinstance(positions, bool) or (on_grid and min(positions) > 0)):
        raise InputError(f"positions must be True, False or a grid such as (7, 7), not {positions!r}")
    parts = 4 if on_grid else 2
    if positions and dim % parts:
        raise InputError(f"positions={positions} needs elements of a width that {parts} divides, not {dim}")


def position_codes(positions: Positions, mask_BN: Tensor, like_BNC: Tensor) -> Tensor:
    """Return the codes `(B, N, C)` in the precision of `like_BNC`, computed in float32 at least."""
    dtype = torch.promote_types(like_BNC.dtype, torch.float32)
    if positions is True:
        codes_BNC = line_codes(mask_BN, like_BNC.shape[-1], dtype=dtype)
    else:
        codes_BNC = grid_codes(mask_BN, like_BNC.shape[-1], grid=positions, dtype=dtype)
    return codes_BNC.to(like_BNC.dtype)


def line_codes(mask_BN: Tensor, dim: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the `(B, N, dim)` codes of the 1st to n-th real element of each set of n."""
    size_B1 = mask_BN.sum(dim=1, keepdim=True).to(dtype)
    return encode_positions(_turn(mask_BN.cumsum(dim=1).to(dtype), size_B1), dim)


def grid_codes(
    mask_BN: Tensor, dim: int, *, grid: tuple[int, int], dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return the `(B, N, dim)` codes of cells, row by row: one half of the channels for the row, one for the column.

    Raises:
        InputError: a set does not have all cells of the `(height, width)` of `grid`.
    """
    height, width = grid
    size_B = mask_BN.sum(dim=1)
    if (size_B != height * width).any():
        wrong = int(size_B[size_B != height * width][0])
        raise InputError(
            f"positions={grid} needs all {height * width} cells of each image, and a set has {wrong}; give the grid of "
            "the features, and train without an augmentation that drops cells"
        )
    cell_BN = (mask_BN.cumsum(dim=1) - 1).clamp(min=0)
    row_BN, column_BN = cell_BN // width + 1, cell_BN % width + 1
    halves = (_turn(row_BN.to(dtype), height), _turn(column_BN.to(dtype), width))
    return torch.cat([encode_positions(half_BN, dim // 2) for half_BN in halves], dim=-1)


def _turn(position: Tensor, last: Tensor | int) -> Tensor:
    return position / (last + 1e-6) * (2 * math.pi)
