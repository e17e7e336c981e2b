"""Attention pooling: what the global branch of HGR makes of frames and of words (Chen et al., CVPR 2020)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.aggregators.masks import masked_softmax, zero_pads
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("attention")
class Attention(Aggregator):
    """A mean in which every element weighs by the exponential of a learned score: one linear map, the same for all.

    The map has no bias: it would shift all scores of a set alike, which no softmax sees.

    Args:
        dim: width of the elements.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.score = nn.Linear(dim, 1, bias=False)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the `(B, D)` weighted means and the `(B, N)` weights, a softmax over the real elements."""
        x_BND = zero_pads(x_BND, mask_BN)
        weight_BN = masked_softmax(self.score(x_BND), mask_BN).squeeze(2)
        return Pooled(torch.einsum("bn,bnd->bd", weight_BN, x_BND), weights=weight_BN)
