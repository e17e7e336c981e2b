"""A transformer block over a learned query and the elements, as in DINO (Caron et al., ICCV 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.aggregators.masks import zero_pads
from polypool.aggregators.queries.cait import ClassAttention
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("dino_block")
class DINOBlock(Aggregator):
    """The output of a vision transformer block for a learned query prepended to the elements.

    The block is DINO's: x + attention(norm(x)), then x + MLP(norm(x)), over the query and the elements. Only the
    query's row is computed, because the elements' outputs are not used. In V-JEPA's attentive probe (Bardes et al.
    2024) the query is not normalised and does not attend to itself; the baseline in efficient probing has no query and
    averages the block's outputs. Keys have no bias, because the softmax would cancel it.

    Args:
        dim: width of the elements; `heads` must divide it.
        heads: attention heads; the published models have one per 64 channels.
    """

    def __init__(self, dim: int, *, heads: int = 8) -> None:
        super().__init__()
        self.query_D = nn.Parameter(nn.init.trunc_normal_(torch.empty(dim), std=0.02))
        self.block = ClassAttention(dim, heads=heads, scale=None)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the query outputs `(B, D)` and the elements' weights `(B, N)`, without the query's weight."""
        x_BND = zero_pads(x_BND, mask_BN)
        vector_B1D, weight_BN = self.block(self.query_D.expand(x_BND.shape[0], 1, -1), x_BND, mask_BN)
        return Pooled(vector_B1D.squeeze(1), weights=weight_BN)
