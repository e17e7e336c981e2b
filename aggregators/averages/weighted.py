"""Base class of weighted sums, with a weight for each element and channel."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.aggregators.masks import zero_pads


class WeightedSum(Aggregator):
    """The sum of the elements with the weights that `weigh` returns, a weight for each element and channel."""

    @abstractmethod
    def weigh(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the weights `(B, N, D)`, zero where there is no element, of elements whose pads are zero."""

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the `(B, D)` weighted sums and the `(B, N, D)` weights."""
        x_BND = zero_pads(x_BND, mask_BN)
        weight_BND = self.weigh(x_BND, mask_BN)
        return Pooled((weight_BND * x_BND).sum(dim=1), weights=weight_BND)
