"""SoftPool (Stergiou, Poppe and Kalliatakis 2021, equations 1 and 2)."""

from __future__ import annotations

from torch import Tensor

from polypool.aggregators.averages.weighted import WeightedSum
from polypool.aggregators.masks import masked_softmax
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("softpool")
class SoftPool(WeightedSum):
    """A mean in which every value is weighted by its exponential, per channel."""

    def weigh(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the weights `(B, N, D)`, a softmax over the elements per channel."""
        return masked_softmax(x_BND, mask_BN)
