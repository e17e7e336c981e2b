"""The first element, such as a transformer's CLS token (a baseline of Stefanini et al. 2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("cls")
class CLS(Aggregator):
    """The first real element, for transformers that put a summary token first."""

    averages = True
    symmetric = False

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the first elements `(B, D)` and one-hot weights `(B, N)`."""
        first_B1 = mask_BN.int().argmax(dim=1, keepdim=True)
        vector_BD = x_BND[torch.arange(x_BND.shape[0], device=x_BND.device), first_B1[:, 0]]
        return Pooled(vector_BD, weights=x_BND.new_zeros(mask_BN.shape).scatter(1, first_B1, 1.0))
