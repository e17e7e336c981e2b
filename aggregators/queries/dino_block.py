"""A whole transformer block over a learned query and the elements, as in DINO (Caron et al., ICCV 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.aggregators.masks import zero_pads
from polypool.aggregators.queries.cait import ClassAttention
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("dino_block")
class DINOBlock(Aggregator):
    """What a block of a vision transformer makes of a learned query that it sees beside the elements.

    The block is DINO's: x + attention(norm(x)), then x + MLP(norm(x)), over the query and the elements. What it makes
    of the elements is not used, so the query's row alone is computed, which is the same. V-JEPA's attentive probe
    (Bardes et al. 2024) differs in that the query, without a norm, does not see itself; efficient probing has no query
    here, but the mean of what the block makes of the elements. Keys have no bias, which no softmax sees.

    Args:
        dim: width of the elements, which `heads` must divide.
        heads: of the attention; the published models have one for 64 channels.
    """

    def __init__(self, dim: int, *, heads: int = 8) -> None:
        super().__init__()
        self.query_D = nn.Parameter(nn.init.trunc_normal_(torch.empty(dim), std=0.02))
        self.block = ClassAttention(dim, heads=heads, scale=None)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the `(B, D)` queries behind the block and the `(B, N)` weights of the elements, without its own."""
        x_BND = zero_pads(x_BND, mask_BN)
        vector_B1D, weight_BN = self.block(self.query_D.expand(x_BND.shape[0], 1, -1), x_BND, mask_BN)
        return Pooled(vector_B1D.squeeze(1), weights=weight_BN)
