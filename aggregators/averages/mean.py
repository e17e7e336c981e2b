"""Mean pooling, the aggregator of VSE++ regions and of most dual encoders."""

from __future__ import annotations

from torch import Tensor

from aggregators.base import Aggregator, Pooled
from infra.registry import AGGREGATORS


@AGGREGATORS.register("mean")
class Mean(Aggregator):
    """The average of the real elements."""

    def __init__(self, dim: int) -> None:
        super().__init__()

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the `(B, D)` means and the `(B, N)` weights, 1/N for each of a set's N elements."""
        total_BD = x_BND.masked_fill(~mask_BN[..., None], 0.0).sum(dim=1)
        size_B1 = mask_BN.sum(dim=1, keepdim=True)
        return Pooled(total_BD / size_B1, weights=mask_BN / size_B1)
