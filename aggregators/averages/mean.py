"""Mean pooling, the aggregator of VSE++ regions and of most dual encoders."""

from __future__ import annotations

from torch import Tensor

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.aggregators.masks import masked_mean
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("mean")
class Mean(Aggregator):
    """The mean of the real elements."""

    averages = True

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the means `(B, D)` and weights `(B, N)`, 1/N for a set of N elements."""
        return Pooled(masked_mean(x_BND, mask_BN), weights=mask_BN / mask_BN.sum(dim=1, keepdim=True))
