"""K-max pooling: the mean of each channel's k largest values (VSE-infinity, section 3.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.aggregators.ranks.sorted_sum import sorted_sum
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("kmax")
class KMax(Aggregator):
    """The mean of the k largest values of each channel; all of them where a set is smaller than k.

    Args:
        dim: width of the elements.
        k: how many values count; 1 is max pooling, a large k is mean pooling.
    """

    weights_over = "ranks"

    def __init__(self, dim: int, *, k: int = 5) -> None:
        super().__init__()
        if not isinstance(k, int) or k < 1:
            raise ValueError(f"k must be a whole number of at least 1, not {k!r}")
        self.k = k

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the `(B, D)` means of the largest values and the `(B, N)` weights over ranks, 1/k on the first k."""
        count_B1 = mask_BN.sum(dim=1, keepdim=True).clamp(max=self.k)
        dtype = torch.promote_types(x_BND.dtype, torch.float32)
        rank_N = torch.arange(mask_BN.shape[1], device=mask_BN.device)
        weight_BN = (rank_N < count_B1).to(dtype) / count_B1
        return Pooled(sorted_sum(x_BND, weight_BN, mask_BN), weights=weight_BN)
