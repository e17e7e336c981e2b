"""The sorted weighted sum and the narrow GRU of rank encodings on CUDA devices, in Triton.

The kernels of the sum do not sort: an element's rank is the number of elements in its channel that are larger, or equal
and earlier. A program counts them for one set and a few channels, in the memory layout of the elements. All steps of
the GRU are one kernel, as on a CPU in `shared_gru.c`: a step of 32 states is cheaper than a launch.
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


HIDDEN = (16, 32, 64)
"""Widths of the states that `SharedGRU` supports."""
ROWS = 16
"""Sets per program, the minimum number of rows of `tl.dot`."""


@triton.jit
def _gate(weight, gate, H: tl.constexpr):
    """Return a gate's recurrent weights `(past, next)`."""
    i = tl.arange(0, H)
    return tl.load(weight + (gate * H + i[None, :]) * H + i[:, None])


@triton.jit
def _read(inputs, weight, bias, sizes, state, kept, sets, longest, H: tl.constexpr, ROWS: tl.constexpr):
    """Read a sequence from each size's end to its start; store states, and r, z, q and n of every step."""
    s, i = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, H)[None, :]
    size = tl.load(sizes + s, mask=s < sets, other=0)
    of_r, of_z, of_q = _gate(weight, 0, H), _gate(weight, 1, H), _gate(weight, 2, H)
    to_r, to_z, to_q = tl.load(bias + i), tl.load(bias + H + i), tl.load(bias + 2 * H + i)
    past = tl.zeros((ROWS, H), tl.float32)
    for step in range(longest):
        k = (size - 1 - step)[:, None]
        real = (k >= 0) & (i < H)
        row = inputs + k * 3 * H + i
        r = tl.sigmoid(tl.load(row, mask=real, other=0.0) + tl.dot(past, of_r, input_precision="ieee") + to_r)
        z = tl.sigmoid(
            tl.load(row + H, mask=real, other=0.0) + tl.dot(past, of_z, input_precision="ieee") + to_z
        )
        q = tl.dot(past, of_q, input_precision="ieee") + to_q
        n = 2 * tl.sigmoid(2 * (tl.load(row + 2 * H, mask=real, other=0.0) + r * q)) - 1  # tanh
        past = tl.where(real, n + z * (past - n), past)
        at = s[:, None].to(tl.int64) * longest + k
        tl.store(state + at * H + i, past, mask=real)
        tl.store(kept + at * 4 * H + i, r, mask=real)
        tl.store(kept + at * 4 * H + H + i, z, mask=real)
        tl.store(kept + at * 4 * H + 2 * H + i, q, mask=real)
        tl.store(kept + at * 4 * H + 3 * H + i, n, mask=real)


@triton.jit
def _back(grad, weight, state, kept, sizes, parts, sets, longest, H: tl.constexpr, ROWS: tl.constexpr):
    """Store the gradients of r and z before their sigmoid, of q, and of n before its tanh, at every step."""
    s, i = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, H)[None, :]
    size = tl.load(sizes + s, mask=s < sets, other=0)[:, None]
    of_r, of_z, of_q = (
        tl.trans(_gate(weight, 0, H)),
        tl.trans(_gate(weight, 1, H)),
        tl.trans(_gate(weight, 2, H)),
    )
    carried = tl.zeros((ROWS, H), tl.float32)
    for k in range(longest):
        real = (k < size) & (i < H)
        at = s[:, None].to(tl.int64) * longest + k
        now = carried + tl.load(grad + at * H + i, mask=real, other=0.0)
        past = tl.load(state + (at + 1) * H + i, mask=(k + 1 < size) & (i < H), other=0.0)
        r = tl.load(kept + at * 4 * H + i, mask=real, other=0.0)
        z = tl.load(kept + at * 4 * H + H + i, mask=real, other=0.0)
        q = tl.load(kept + at * 4 * H + 2 * H + i, mask=real, other=0.0)
        n = tl.load(kept + at * 4 * H + 3 * H + i, mask=real, other=0.0)
        to_n = now * (1 - z) * (1 - n * n)
        to_q = to_n * r
        to_r = to_q * q * (1 - r)
        to_z = now * (past - n) * z * (1 - z)
        tl.store(parts + at * 4 * H + i, to_r, mask=real)
        tl.store(parts + at * 4 * H + H + i, to_z, mask=real)
        tl.store(parts + at * 4 * H + 2 * H + i, to_q, mask=real)
        tl.store(parts + at * 4 * H + 3 * H + i, to_n, mask=real)
        carried = now * z
        carried += tl.dot(to_r, of_r, input_precision="ieee")
        carried += tl.dot(to_z, of_z, input_precision="ieee")
        carried += tl.dot(to_q, of_q, input_precision="ieee")


class SharedGRU(torch.autograd.Function):
    """`(x_NC, size_S, *weights)` -> `(S, N, H)`, as `ranks.shared_gru.SharedGRU`, in float32; H is one of `HIDDEN`.

    The forward direction reads the reversed sequence once, for all sizes.
    """

    @staticmethod
    def forward(ctx: Any, x_NC: Tensor, size_S: Tensor, *weights: Tensor) -> Tensor:
        """Return the mean of both directions, undefined beyond a size."""
        whole_1 = torch.full_like(size_S[:1], len(x_NC))
        there_1NH, *kept_there = _states(x_NC.flip(0), whole_1, *weights[:4])
        back_SNH, *kept_back = _states(x_NC, size_S, *weights[4:])
        ctx.save_for_backward(x_NC, size_S, whole_1, *weights, there_1NH, *kept_there, back_SNH, *kept_back)
        return (there_1NH.flip(1) + back_SNH) / 2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_SNH: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the sequence and the weights."""
        x_NC, size_S, whole_1, *rest = ctx.saved_tensors
        weights, (there_1NH, kept_there, back_SNH, kept_back) = rest[:8], rest[8:]
        real_SN1 = (torch.arange(len(x_NC), device=x_NC.device) < size_S[:, None])[..., None]
        half_SNH = (grad_SNH / 2).where(real_SN1, 0.0)
        half_1NH = half_SNH.sum(dim=0, keepdim=True).flip(1)
        there_NC, *of_there = _gradients(x_NC.flip(0), whole_1, half_1NH, there_1NH, kept_there, *weights[:2])
        back_NC, *of_back = _gradients(x_NC, size_S, half_SNH, back_SNH, kept_back, *weights[4:6])
        return there_NC.flip(0) + back_NC, None, *of_there, *of_back


def _states(
    x_NC: Tensor, size_S: Tensor, of_input_GC: Tensor, of_state_GH: Tensor, input_G: Tensor, state_G: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the states `(S, N, H)` of one direction, zero beyond a size, and r, z, q and n `(S, N, 4 H)`."""
    sets, longest, hidden = len(size_S), len(x_NC), of_state_GH.shape[1]
    input_NG = torch.addmm(input_G, x_NC, of_input_GC.T)
    state_SNH, kept_SNK = (x_NC.new_zeros(sets, longest, width) for width in (hidden, 4 * hidden))
    _steps(_read, input_NG, of_state_GH, state_G, size_S, state_SNH, kept_SNK)
    return state_SNH, kept_SNK


def _gradients(
    x_NC: Tensor,
    size_S: Tensor,
    grad_SNH: Tensor,
    state_SNH: Tensor,
    kept_SNK: Tensor,
    of_input_GC: Tensor,
    of_state_GH: Tensor,
) -> tuple[Tensor, ...]:
    """Return the gradients of the sequence and of one direction's four weights."""
    hidden = state_SNH.shape[2]
    part_SNK = torch.zeros_like(kept_SNK)
    _steps(_back, grad_SNH, of_state_GH, state_SNH, kept_SNK, size_S, part_SNK)
    part_NK, part_AG = part_SNK.sum(dim=0), part_SNK[..., : 3 * hidden].flatten(0, 1)
    input_NG = torch.cat((part_NK[:, : 2 * hidden], part_NK[:, 3 * hidden :]), dim=1)
    past_SNH = torch.nn.functional.pad(state_SNH[:, 1:], (0, 0, 0, 1))
    state_GH = part_AG.T @ past_SNH.flatten(0, 1)
    return input_NG @ of_input_GC, input_NG.T @ x_NC, state_GH, input_NG.sum(dim=0), part_AG.sum(dim=0)


def _steps(kernel: Any, *tensors: Tensor) -> None:
    """Run all steps, a program per `ROWS` sets; the last tensor is `(S, N, 4 H)`."""
    sets, longest, width = tensors[-1].shape
    grid = (triton.cdiv(sets, ROWS),)
    kernel[grid](*(x.contiguous() for x in tensors), sets, longest, H=width // 4, ROWS=ROWS)
