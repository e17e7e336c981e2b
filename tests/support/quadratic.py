"""An aggregator that compares every element with every other one."""

from __future__ import annotations

from torch import Tensor

from polypool.aggregators.aggregator import Aggregator, Pooled


class Quadratic(Aggregator):
    """The mean of what each element sees of all others; `(B, N, N)` weights are kept for the gradient."""

    def __init__(self, dim: int) -> None:
        super().__init__()

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the means; every element counts as real."""
        return Pooled(((x_BND @ x_BND.mT).sigmoid() @ x_BND).mean(dim=1))
