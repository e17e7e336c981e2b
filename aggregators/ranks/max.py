"""Max pooling."""

from __future__ import annotations

from torch import Tensor

from aggregators.base import Aggregator
from infra.registry import AGGREGATORS


@AGGREGATORS.register("max")
class Max(Aggregator):
    """The largest value of each channel over the real elements."""

    weights_over = "ranks"

    def __init__(self, dim: int) -> None:
        super().__init__()

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the `(B, D)` maxima."""
        return x_BND.masked_fill(~mask_BN[..., None], float("-inf")).amax(dim=1)

    def weights(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the `(B, N)` weights over sorted positions: all on the first."""
        weight_BN = x_BND.new_zeros(mask_BN.shape)
        weight_BN[:, 0] = 1.0
        return weight_BN
