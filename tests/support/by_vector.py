"""An aggregator that looks at one vector of the other modality; none that is built in does."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Context, Pooled, pool_all_pairs


class ByVector(Aggregator):
    """Elements weigh by the softmax of their products with a vector of the other modality."""

    context = "vector"

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(dim, dim)

    def forward(self, x_BND: Tensor, mask_BN: Tensor, *, context: Context) -> Pooled:
        if context.all_pairs:
            return pool_all_pairs(self.forward, x_BND, mask_BN, context)
        x_BND = x_BND.masked_fill(~mask_BN[..., None], 0.0)
        score_BN = torch.einsum("bnd,bd->bn", x_BND, self.query(context.x))
        weight_BN = score_BN.masked_fill(~mask_BN, float("-inf")).softmax(dim=1)
        return Pooled(torch.einsum("bn,bnd->bd", weight_BN, x_BND), weights=weight_BN)
