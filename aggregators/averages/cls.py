"""The first element alone, such as a transformer's CLS token (a baseline of Stefanini et al. 2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from aggregators.base import Aggregator
from infra.registry import AGGREGATORS


@AGGREGATORS.register("cls")
class CLS(Aggregator):
    """The first real element; with a transformer that puts such a token first, it stands for the set."""

    symmetric = False

    def __init__(self, dim: int) -> None:
        super().__init__()

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the `(B, D)` first elements."""
        first_B = mask_BN.int().argmax(dim=1)
        return x_BND[torch.arange(len(x_BND), device=x_BND.device), first_B]

    def weights(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the `(B, N)` weight of every element: all on the first."""
        first_B1 = mask_BN.int().argmax(dim=1, keepdim=True)
        return x_BND.new_zeros(mask_BN.shape).scatter(1, first_B1, 1.0)
