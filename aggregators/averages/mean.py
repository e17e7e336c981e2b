"""Mean pooling, the aggregator of VSE++ regions and of most dual encoders."""

from __future__ import annotations

from torch import Tensor

from aggregators.base import Aggregator
from infra.registry import AGGREGATORS


@AGGREGATORS.register("mean")
class Mean(Aggregator):
    """The average of the real elements."""

    def __init__(self, dim: int) -> None:
        super().__init__()

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the `(B, D)` means."""
        total_BD = x_BND.masked_fill(~mask_BN[..., None], 0.0).sum(dim=1)
        return total_BD / mask_BN.sum(dim=1, keepdim=True)

    def weights(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the `(B, N)` weight of every element: 1/N."""
        return mask_BN / mask_BN.sum(dim=1, keepdim=True)
