"""Sums with a weight for every element, or for every element and channel."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from aggregators.base import Aggregator


class WeightedSum(Aggregator):
    """What `weights` returns says it all: the result is the sum of the elements with these weights."""

    @abstractmethod
    def weights(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the weights `(B, N, D)`, zero where there is no element."""

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the `(B, D)` weighted sums."""
        x_BND = zero_pads(x_BND, mask_BN)
        return (self.weights(x_BND, mask_BN) * x_BND).sum(dim=1)


def zero_pads(x_BND: Tensor, mask_BN: Tensor) -> Tensor:
    """Return the sets with zeros where there is no element, whatever lay there."""
    return x_BND.masked_fill(~mask_BN[..., None], 0.0)


def masked_softmax(score_BND: Tensor, mask_BN: Tensor) -> Tensor:
    """Return the softmax over a set's real elements, one channel at a time; zero elsewhere."""
    return score_BND.masked_fill(~mask_BN[..., None], float("-inf")).softmax(dim=1)
