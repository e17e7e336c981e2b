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
    score_QG: Tensor, k_row: Tensor, k_column: Tensor, *, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return the logsumexp of the highest scores over the temperature: of each row `(Q,)` and each column `(G,)`.

    Where several scores tie for the last places, each counts for its share of them, so the result is that of exactly
    k scores. No matrix is larger than that of the scores.

    Args:
        score_QG: scores.
        k_row: how many of each row count, from 1 to G; a whole scalar tensor, which only a CPU reads on the host.
        k_column: how many of each column count, from 1 to Q.
        temperature: divides the scores.
    """
    return _LogSumExpOfHighest.apply(score_QG, k_row, k_column, temperature)


class _LogSumExpOfHighest(torch.autograd.Function):
    """Keeps the exponentials, which are the gradient."""

    @staticmethod
    def forward(
        ctx: Any, score_QG: Tensor, k_row: Tensor, k_column: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        row_QG, top_Q1 = _exponentials(score_QG, k_row, temperature=temperature, dim=1)
        column_QG, top_1G = _exponentials(score_QG, k_column, temperature=temperature, dim=0)
        total_Q1, total_1G = row_QG.sum(dim=1, keepdim=True), column_QG.sum(dim=0, keepdim=True)
        ctx.save_for_backward(row_QG, column_QG, total_Q1 * temperature, total_1G * temperature)
        row_Q1, column_1G = total_Q1.log() + top_Q1 / temperature, total_1G.log() + top_1G / temperature
        return row_Q1.squeeze(1), column_1G.squeeze(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_Q: Tensor, grad_G: Tensor) -> tuple[Tensor, None, None, None]:
        row_QG, column_QG, total_Q1, total_1G = ctx.saved_tensors
        grad_QG = row_QG * (grad_Q[:, None] / total_Q1)
        return grad_QG.addcmul_(column_QG, grad_G / total_1G), None, None, None


def _exponentials(x_QG: Tensor, k: Tensor, *, temperature: float, dim: int) -> tuple[Tensor, Tensor]:
    """Return exp((x - maximum) / temperature) of the k highest values along a dimension, else 0; and the maxima."""
    top, spare_QG = (
        x_QG.amax(dim, keepdim=True),
        torch.empty(x_QG.shape, dtype=x_QG.dtype, device=x_QG.device),
    )
    weight_QG = _weights(x_QG, k, dim=dim, spare_QG=spare_QG)
    return torch.sub(x_QG, top, out=spare_QG).mul_(1 / temperature).exp_().mul_(weight_QG), top


def _weights(x_QG: Tensor, k: Tensor, *, dim: int, spare_QG: Tensor) -> Tensor:
    """Return one for what is above the k-th highest value, zero for what is below, and the share of what ties.

    By arithmetic on zeros and ones: to select by a mask takes a CPU many times longer, since its branches are a coin's
    flip.
    """
    kth = kth_highest(x_QG, k, dim=dim, spare_QG=spare_QG).unsqueeze(dim)
    above_QG, reach_QG = (
        torch.gt(x_QG, kth, out=torch.empty_like(spare_QG)),
        torch.ge(x_QG, kth, out=spare_QG),
    )
    above, reach = above_QG.sum(dim, keepdim=True), reach_QG.sum(dim, keepdim=True)
    return above_QG.lerp_(reach_QG, (k - above) / (reach - above))


def kth_highest(x_QG: Tensor, k: Tensor, *, dim: int, spare_QG: Tensor) -> Tensor:
    """Return the k-th highest value along a dimension of a matrix, without gradient; `spare_QG` is overwritten.

    An accelerator sorts, since to select it would have to tell the host what k is. On a CPU that costs nothing, and
    numpy's selection is some 50 times faster than a sort.
    """
    if x_QG.device.type != "cpu":
        return x_QG.sort(dim=dim, descending=True).values.index_select(dim, k.view(1) - 1).squeeze(dim)
    x_BN = spare_QG.view(-1, x_QG.shape[dim]).copy_(x_QG if dim == 1 else x_QG.T).numpy()
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
