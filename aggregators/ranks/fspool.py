"""Featurewise sort pooling, FSPool (Zhang, Hare and Prügel-Bennett 2020, arXiv 1906.02795, and its code)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from aggregators.base import Aggregator, Pooled
from aggregators.ranks.interpolation import stretch
from aggregators.ranks.sorted_sum import sorted_sum
from infra.registry import AGGREGATORS


@AGGREGATORS.register("fspool")
class FSPool(Aggregator):
    """A weighted sum over each channel's sorted values, with weights of its own for every channel.

    A channel learns `pieces` + 1 weights, which lie evenly from a set's largest value to its smallest; between
    them weights are interpolated. They need not be positive or sum to one. A set of one has the first weight (where it
    is padded, the authors' code counts a pad as its second element).

    Args:
        dim: width of the elements.
        pieces: parts between the learned weights.
    """

    weights_over = "ranks"

    def __init__(self, dim: int, *, pieces: int = 20) -> None:
        super().__init__()
        if not isinstance(pieces, int) or pieces < 1:
            raise ValueError(f"pieces must be a whole number of at least 1, not {pieces!r}")
        self.weight = nn.Parameter(torch.randn(dim, pieces + 1))

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the `(B, D)` pooled vectors and the `(B, N, D)` weights over ranks."""
        size_S, set_B = mask_BN.sum(dim=1).unique(return_inverse=True)
        weight_SND = stretch(self.weight.T, size_S)
        rest = (0, 0, 0, mask_BN.shape[1] - weight_SND.shape[1])
        weight_BND = nn.functional.pad(weight_SND, rest).index_select(0, set_B)
        return Pooled(sorted_sum(x_BND, weight_BND, mask_BN), weights=weight_BND)
