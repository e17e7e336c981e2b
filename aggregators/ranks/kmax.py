"""K-max pooling: the mean of each channel's k largest values (VSE-infinity, section 3.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.ranks.sorted_sum import sorted_sum
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("kmax")
class KMax(Aggregator):
    """The mean of each channel's k largest values, or of all values in sets smaller than k.

    Args:
        dim: width of the elements.
        k: number of values; 1 is max pooling, a large k is mean pooling.
    """

    weights_over = "ranks"

    def __init__(self, dim: int, *, k: int = 5) -> None:
        super().__init__()
        check_counts(k=k)
        self.k = k

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the means `(B, D)` and the weights over ranks `(B, N)`: 1/k on the first k, 1/n in sets of n < k."""
        count_B1 = mask_BN.sum(dim=1, keepdim=True).clamp(max=self.k)
        dtype = torch.promote_types(x_BND.dtype, torch.float32)
        rank_N = torch.arange(mask_BN.shape[1], device=mask_BN.device)
        weight_BN = (rank_N < count_B1).to(dtype) / count_B1
        return Pooled(sorted_sum(x_BND, weight_BN, mask_BN), weights=weight_BN)
