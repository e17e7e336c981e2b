"""Adaptive exponential pooling, adaPool (Stergiou and Poppe 2021, arXiv 2111.00772, and its code)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.averages.weighted import WeightedSum
from polypool.aggregators.masks import masked_mean, masked_softmax
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("adapool")
class AdaPool(WeightedSum):
    """A learned mix of two exponentially weighted means, per channel.

    The first weights a value by its similarity to the mean (softmax of the Dice-Soerensen coefficient 2|ab| / (a^2 +
    b^2), per value as in the authors' code), the second by the value (SoftPool). The paper learns a mix for each output
    position; a set has one position, so there is one weight. A sigmoid keeps it in (0, 1), where the code clamps. Two
    zeros have a coefficient of 0, where the code sets the whole result to 0. The AdaPool of Brothers (2025) is
    `self_query`.

    Args:
        dim: width of the elements.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.balance = nn.Parameter(torch.zeros(()))

    def weigh(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the `(B, N, D)` mixed weights."""
        wide_BND = x_BND.to(torch.promote_types(x_BND.dtype, torch.float32))  # squares overflow in float16
        mean_BD = masked_mean(wide_BND, mask_BN)
        near_BND = masked_softmax(dice_sorensen(wide_BND, mean_BD[:, None]), mask_BN)
        large_BND = masked_softmax(wide_BND, mask_BN)
        return (near_BND + (large_BND - near_BND) * torch.sigmoid(-self.balance)).to(x_BND.dtype)


def dice_sorensen(a: Tensor, b: Tensor) -> Tensor:
    """Return 2|ab| / (a^2 + b^2), between 0 and 1; 0 where both are 0."""
    return 2 * (a * b).abs() / (a.square() + b.square()).clamp(min=torch.finfo(a.dtype).tiny)
