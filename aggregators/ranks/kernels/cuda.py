"""The sorted weighted sum on CUDA devices, in Triton.

The kernels do not sort: an element's rank is the number of elements in its channel that are larger, or equal and
earlier. A program counts them for one set and a few channels, in the memory layout of the elements.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

LARGEST = 64
"""Largest set size for counting ranks. Comparisons grow quadratically: at about 100 elements sorting is faster."""
TILE = 4096
"""Elements per program."""


@triton.jit
def _tile(x, mask, size, dim, SIZE: tl.constexpr, COLUMNS: tl.constexpr):
    """Return a tile `(SIZE, COLUMNS)` of one set: values, ranks, mask, and offsets in `(B, N, D)`."""
    b, n = tl.program_id(0).to(tl.int64), tl.arange(0, SIZE)
    d = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real_N = tl.load(mask + b * size + n, mask=n < size, other=0) != 0
    at = (b * size + n[:, None]) * dim + d[None, :]
    real = real_N[:, None] & (d < dim)[None, :]
    value = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
    rank = tl.zeros((SIZE, COLUMNS), tl.int32)
    for m in range(size):
        row = b * size + m
        other = tl.load(x + row * dim + d, mask=d < dim, other=0.0).to(tl.float32)[None, :]
        before = (other > value) | ((other == value) & (n > m)[:, None])
        rank += before.to(tl.int32) * tl.load(mask + row)  # 0 in the padding
    return value, rank, real, at


@triton.jit
def _weights(w, rank, real, size, dim, PER_CHANNEL: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the weight of every element of a tile by its rank."""
    row = tl.program_id(0).to(tl.int64) * size + rank
    d = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    at = row * dim + d[None, :] if PER_CHANNEL else row
    return tl.load(w + at, mask=real, other=0.0)


@triton.jit
def _sum(x, mask, w, out, size, dim, SIZE: tl.constexpr, COLUMNS: tl.constexpr, PER_CHANNEL: tl.constexpr):
    value, rank, real, _ = _tile(x, mask, size, dim, SIZE, COLUMNS)
    weight = _weights(w, rank, real, size, dim, PER_CHANNEL, COLUMNS)
    d = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(out + tl.program_id(0).to(tl.int64) * dim + d, tl.sum(weight * value, axis=0), mask=d < dim)


@triton.jit
def _spread(
    x, mask, w, grad, out, size, dim, SIZE: tl.constexpr, COLUMNS: tl.constexpr, PER_CHANNEL: tl.constexpr
):
    """Multiply every element's weight by its channel's gradient."""
    _, rank, real, at = _tile(x, mask, size, dim, SIZE, COLUMNS)
    weight = _weights(w, rank, real, size, dim, PER_CHANNEL, COLUMNS)
    d = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    grad_D = tl.load(grad + tl.program_id(0).to(tl.int64) * dim + d, mask=d < dim, other=0.0)
    tl.store(out + at, weight * grad_D[None, :], mask=real)


@triton.jit
def _sort(x, mask, out, size, dim, SIZE: tl.constexpr, COLUMNS: tl.constexpr):
    """Store every value at its rank."""
    value, rank, real, _ = _tile(x, mask, size, dim, SIZE, COLUMNS)
    d = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    at = (tl.program_id(0).to(tl.int64) * size + rank) * dim + d[None, :]
    tl.store(out + at, value, mask=real)


class SortedSum(torch.autograd.Function):
    """`(x_BND, weight_BNC, mask_BN)` -> `(B, D)` in float32; C is D, or 1 for weights shared by all channels.

    Only the inputs are saved for the backward pass, which counts ranks again. It uses no atomic additions and is
    deterministic.
    """

    @staticmethod
    def forward(ctx: Any, x_BND: Tensor, weight_BNC: Tensor, mask_BN: Tensor) -> Tensor:
        """Sum in float32."""
        x_BND, weight_BNC, mask_BN = x_BND.contiguous(), weight_BNC.contiguous(), mask_BN.contiguous()
        ctx.save_for_backward(x_BND, weight_BNC, mask_BN)
        out_BD = weight_BNC.new_empty(len(x_BND), x_BND.shape[2])
        _launch(_sum, x_BND, mask_BN, weight_BNC, out_BD, PER_CHANNEL=weight_BNC.shape[2] > 1)
        return out_BD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BD: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of elements and weights; among equal elements the earlier has the lower rank."""
        x_BND, weight_BNC, mask_BN = ctx.saved_tensors
        shared, grad_x_BND, grad_weight_BNC = weight_BNC.shape[2] == 1, None, None
        if ctx.needs_input_grad[0]:
            grad_x_BND = torch.zeros_like(x_BND)
            _launch(
                _spread, x_BND, mask_BN, weight_BNC, grad_BD.contiguous(), grad_x_BND, PER_CHANNEL=not shared
            )
        if ctx.needs_input_grad[1]:
            sorted_BND = _sorted(x_BND, mask_BN).to(weight_BNC.dtype)
            grad_weight_BNC = sorted_BND @ grad_BD[..., None] if shared else sorted_BND * grad_BD[:, None]
        return grad_x_BND, grad_weight_BNC, None


class SortDescending(torch.autograd.Function):
    """`(x_BND, mask_BN)` -> `(B, N, D)`: values in descending order, then zeros."""

    @staticmethod
    def forward(ctx: Any, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Sort in the precision of the elements."""
        x_BND, mask_BN = x_BND.contiguous(), mask_BN.contiguous()
        ctx.save_for_backward(x_BND, mask_BN)
        return _sorted(x_BND, mask_BN)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BND: Tensor) -> tuple[Tensor, None]:
        """Scatter the gradients to the values' original positions."""
        x_BND, mask_BN = ctx.saved_tensors
        grad_x_BND, ones_BD = torch.zeros_like(x_BND), torch.ones_like(x_BND[:, 0])
        _launch(_spread, x_BND, mask_BN, grad_BND.contiguous(), ones_BD, grad_x_BND, PER_CHANNEL=True)
        return grad_x_BND, None


def _sorted(x_BND: Tensor, mask_BN: Tensor) -> Tensor:
    sorted_BND = torch.zeros_like(x_BND)
    _launch(_sort, x_BND, mask_BN, sorted_BND)
    return sorted_BND


def _launch(kernel: Any, x_BND: Tensor, mask_BN: Tensor, *more: Tensor, **options: bool) -> None:
    """Launch a kernel on a grid of sets and channel blocks."""
    sets, size, dim = x_BND.shape
    rows = triton.next_power_of_2(size)
    columns = max(16, min(triton.next_power_of_2(dim), TILE // rows))
    grid = sets, triton.cdiv(dim, columns)
    kernel[grid](x_BND, mask_BN.view(torch.uint8), *more, size, dim, SIZE=rows, COLUMNS=columns, **options)
