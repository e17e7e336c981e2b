"""Max pooling."""

from __future__ import annotations

import torch
from torch import Tensor

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("max")
class Max(Aggregator):
    """The maximum of each channel over the real elements."""

    weights_over = "ranks"

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the maxima `(B, D)` and the weights over ranks `(B, N)`, 1 on the first."""
        largest_BD = x_BND.masked_fill(~mask_BN[..., None], float("-inf")).amax(dim=1)
        weight_N = (torch.arange(mask_BN.shape[1], device=x_BND.device) == 0).to(x_BND.dtype)
        return Pooled(largest_BD, weights=weight_N.expand(mask_BN.shape))
