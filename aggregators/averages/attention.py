"""Attention pooling of frames and words, the global branch of HGR (Chen et al., CVPR 2020)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.aggregators.masks import masked_softmax, zero_pads
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("attention")
class Attention(Aggregator):
    """A softmax-weighted mean; one linear map shared by all elements gives the scores.

    The map has no bias, because the softmax would cancel it.

    Args:
        dim: width of the elements.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.score = nn.Linear(dim, 1, bias=False)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return means `(B, D)` and softmax weights `(B, N)`."""
        x_BND = zero_pads(x_BND, mask_BN)
        weight_BN = masked_softmax(self.score(x_BND), mask_BN).squeeze(2)
        return Pooled(torch.einsum("bn,bnd->bd", weight_BN, x_BND), weights=weight_BN)
