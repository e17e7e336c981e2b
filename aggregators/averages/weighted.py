"""Sums with a weight for every element, or for every element and channel."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.infra.compute.device import traced


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


def zero_pads(x_BND: Tensor, mask_BN: Tensor) -> Tensor:
    """Return the sets `(B, N, D)` with zeros in the pads; themselves where there are none, on a CPU."""
    if mask_BN.device.type == "cpu" and not traced() and mask_BN.all():
        return x_BND
    return torch.where(mask_BN[..., None], x_BND, 0.0)  # on CPUs twice as fast as masked_fill


def masked_softmax(score_BND: Tensor, mask_BN: Tensor) -> Tensor:
    """Return the softmax `(B, N, D)` over a set's real elements, one channel at a time; zero in the pads."""
    return torch.where(mask_BN[..., None], score_BND, float("-inf")).softmax(dim=1)


def masked_mean(x_BND: Tensor, mask_BN: Tensor) -> Tensor:
    """Return the means `(B, D)` of the real elements, summed in float32 at least: float16 ends at 65,504."""
    wide = torch.promote_types(x_BND.dtype, torch.float32)
    total_BD = zero_pads(x_BND, mask_BN).sum(dim=1, dtype=wide)
    return (total_BD / mask_BN.sum(dim=1, keepdim=True)).to(x_BND.dtype)
