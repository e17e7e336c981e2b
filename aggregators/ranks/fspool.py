"""Featurewise sort pooling, FSPool (Zhang, Hare and Prügel-Bennett 2020, arXiv 1906.02795, and its code)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.ranks.by_size import weights_by_size
from polypool.aggregators.ranks.sorted_sum import sorted_sum
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("fspool")
class FSPool(Aggregator):
    """A weighted sum over each channel's sorted values, with separate weights for every channel.

    A channel learns `pieces` + 1 weights, spaced evenly from a set's largest value to its smallest and interpolated
    linearly. They need not be positive or sum to one. A set of one element gets the first weight (the authors' code
    counts a pad as its second element if it is padded).

    Args:
        dim: width of the elements.
        pieces: number of intervals between the learned weights.
    """

    weights_over = "ranks"

    def __init__(self, dim: int, *, pieces: int = 20) -> None:
        super().__init__()
        check_counts(pieces=pieces)
        self.weight = nn.Parameter(torch.randn(dim, pieces + 1))

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the pooled vectors `(B, D)` and the weights over ranks `(B, N, D)`."""
        weight_BND = weights_by_size(partial(stretch, self.weight.T), mask_BN)
        return Pooled(sorted_sum(x_BND, weight_BND, mask_BN), weights=weight_BND)


def stretch(value_VC: Tensor, size_S: Tensor, longest: int) -> Tensor:
    """Interpolate linearly between values spaced evenly from a set's first rank to its last.

    Args:
        value_VC: at least two values, for C channels.
        size_S: number of elements of each set; a set of one gets the first value.
        longest: number of ranks to return.

    Returns:
        `(S, longest, C)`; undefined beyond a set's size.
    """
    last = len(value_VC) - 1
    rank_N = torch.arange(longest, device=value_VC.device)
    steps_S1 = (size_S.to(value_VC.device) - 1).clamp(min=1)[:, None]
    place_SN = (rank_N * last).clamp(max=steps_S1 * last)
    below_SN = (place_SN // steps_S1).clamp(max=last - 1)
    part_SN = (place_SN - below_SN * steps_S1).to(value_VC.dtype) / steps_S1
    return value_VC[below_SN].lerp(value_VC[below_SN + 1], part_SN[..., None])
