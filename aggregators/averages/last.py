"""The last element, which in a causal text encoder has attended to all others (as in E5-Mistral and VLM2Vec)."""

from __future__ import annotations

import torch
from torch import Tensor

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("last")
class Last(Aggregator):
    """The last real element, for sets padded on the left or on the right."""

    averages = True
    symmetric = False

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the last elements `(B, D)` and one-hot weights `(B, N)`."""
        last_B = mask_BN.shape[1] - 1 - mask_BN.flip(1).int().argmax(dim=1)
        vector_BD = x_BND[torch.arange(x_BND.shape[0], device=x_BND.device), last_B]
        return Pooled(vector_BD, weights=x_BND.new_zeros(mask_BN.shape).scatter(1, last_B[:, None], 1.0))
