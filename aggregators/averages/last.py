"""The last element alone, which in a causal text encoder has read all others (as E5-Mistral and VLM2Vec pool)."""

from __future__ import annotations

import torch
from torch import Tensor

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("last")
class Last(Aggregator):
    """The last real element, wherever the pads are: equal for sets padded on the left and on the right."""

    averages = True
    symmetric = False

    def __init__(self, dim: int) -> None:
        super().__init__()

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the `(B, D)` last elements and `(B, N)` weights, all on the last."""
        last_B = mask_BN.shape[1] - 1 - mask_BN.flip(1).int().argmax(dim=1)
        vector_BD = x_BND[torch.arange(x_BND.shape[0], device=x_BND.device), last_B]
        return Pooled(vector_BD, weights=x_BND.new_zeros(mask_BN.shape).scatter(1, last_B[:, None], 1.0))
