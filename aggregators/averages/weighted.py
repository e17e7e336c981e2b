"""Base class of weighted sums with one weight per element and channel."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.aggregators.masks import zero_pads


class WeightedSum(Aggregator):
    """The sum of the elements, weighted by `weigh`."""

    @abstractmethod
    def weigh(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the weights `(B, N, D)`, 0 in the padding; `x_BND` is zero in the padding."""

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the weighted sums `(B, D)` and the weights `(B, N, D)`."""
        x_BND = zero_pads(x_BND, mask_BN)
        weight_BND = self.weigh(x_BND, mask_BN)
        return Pooled((weight_BND * x_BND).sum(dim=1), weights=weight_BND)
