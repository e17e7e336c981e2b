"""The sum of exponentials of the k hardest negatives, where k is known to the device alone."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def logsumexp_of_highest(
    score_VT: Tensor, k_row: Tensor, k_column: Tensor, *, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return the logsumexp of the highest scores over the temperature: of each row `(V,)` and each column `(T,)`.

    Where several scores tie for the last places, each counts for its share of them, so the result is that of exactly
    k scores. No matrix is larger than that of the scores.

    Args:
        score_VT: scores.
        k_row: how many of each row count, from 1 to T; a whole scalar tensor, which only a CPU reads on the host.
        k_column: how many of each column count, from 1 to V.
        temperature: divides the scores.
    """
    return _LogSumExpOfHighest.apply(score_VT, k_row, k_column, temperature)


class _LogSumExpOfHighest(torch.autograd.Function):
    """Keeps the exponentials, which are the gradient."""

    @staticmethod
    def forward(
        ctx: Any, score_VT: Tensor, k_row: Tensor, k_column: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        row_VT, top_V1 = _exponentials(score_VT, k_row, temperature=temperature, dim=1)
        column_VT, top_1T = _exponentials(score_VT, k_column, temperature=temperature, dim=0)
        total_V1, total_1T = row_VT.sum(dim=1, keepdim=True), column_VT.sum(dim=0, keepdim=True)
        ctx.save_for_backward(row_VT, column_VT, total_V1 * temperature, total_1T * temperature)
        row_V1, column_1T = total_V1.log() + top_V1 / temperature, total_1T.log() + top_1T / temperature
        return row_V1.squeeze(1), column_1T.squeeze(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_V: Tensor, grad_T: Tensor) -> tuple[Tensor, None, None, None]:
        row_VT, column_VT, total_V1, total_1T = ctx.saved_tensors
        grad_VT = row_VT * (grad_V[:, None] / total_V1)
        return grad_VT.addcmul_(column_VT, grad_T / total_1T), None, None, None


def _exponentials(x_VT: Tensor, k: Tensor, *, temperature: float, dim: int) -> tuple[Tensor, Tensor]:
    """Return exp((x - maximum) / temperature) of the k highest values along a dimension, else 0; and the maxima."""
    top, spare_VT = (
        x_VT.amax(dim, keepdim=True),
        torch.empty(x_VT.shape, dtype=x_VT.dtype, device=x_VT.device),
    )
    weight_VT = shares_of_highest(x_VT, k, dim=dim, spare_VT=spare_VT)
    return torch.sub(x_VT, top, out=spare_VT).mul_(1 / temperature).exp_().mul_(weight_VT), top


def shares_of_highest(x_VT: Tensor, k: Tensor, *, dim: int, spare_VT: Tensor) -> Tensor:
    """Return one for what is above the k-th highest value, zero for what is below, and the share of what ties.

    Without gradient; `spare_VT` is overwritten.

    By arithmetic on zeros and ones: to select by a mask takes a CPU many times longer, since its branches are a coin's
    flip.
    """
    kth = kth_highest(x_VT, k, dim=dim, spare_VT=spare_VT).unsqueeze(dim)
    above_VT, reach_VT = (
        torch.gt(x_VT, kth, out=torch.empty_like(spare_VT)),
        torch.ge(x_VT, kth, out=spare_VT),
    )
    above, reach = above_VT.sum(dim, keepdim=True), reach_VT.sum(dim, keepdim=True)
    return above_VT.lerp_(reach_VT, (k - above) / (reach - above))


def kth_highest(x_VT: Tensor, k: Tensor, *, dim: int, spare_VT: Tensor) -> Tensor:
    """Return the k-th highest value along a dimension of a matrix, without gradient; `spare_VT` is overwritten.

    An accelerator sorts, since to select it would have to tell the host what k is. On a CPU that costs nothing, and
    numpy's selection is some 50 times faster than a sort.
    """
    if x_VT.device.type != "cpu":
        return x_VT.sort(dim=dim, descending=True).values.index_select(dim, k.view(1) - 1).squeeze(dim)
    x_BN = spare_VT.view(-1, x_VT.shape[dim]).copy_(x_VT if dim == 1 else x_VT.T).numpy()
    place = x_BN.shape[1] - int(k)
    list(
        _threads().map(
            lambda rows: rows.partition(place, axis=1), np.array_split(x_BN, torch.get_num_threads())
        )
    )
    return torch.from_numpy(x_BN[:, place].copy())


@lru_cache
def _threads() -> ThreadPoolExecutor:
    """Return threads for numpy, which has none of its own and lets go of the interpreter."""
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), "partition")
