"""SoftPool (Stergiou, Poppe and Kalliatakis 2021, equations 1 and 2)."""

from __future__ import annotations

from torch import Tensor

from polypool.aggregators.averages.weighted import WeightedSum
from polypool.aggregators.masks import masked_softmax
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("softpool")
class SoftPool(WeightedSum):
    """A mean in which every value weighs by its own exponential, one channel at a time."""

    def __init__(self, dim: int) -> None:
        super().__init__()

    def weigh(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the `(B, N, D)` weights: each channel's softmax over the elements."""
        return masked_softmax(x_BND, mask_BN)
