"""Position-weighted mean pooling of causal text encoders (SGPT, Muennighoff 2022, section 3.2.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.aggregators.masks import zero_pads
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("position_mean")
class PositionMean(Aggregator):
    """The n-th of N elements weighs n / (1 + ... + N): in a causal encoder later ones have read more of the text.

    Deviation: positions are counted among a set's real elements. The code of sentence-transformers counts pads before
    them, too, so that with pads on the left its weights are more alike; with pads on the right both are equal.
    """

    averages = True
    symmetric = False

    def __init__(self, dim: int) -> None:
        super().__init__()

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the `(B, D)` weighted means, summed in float32 at least, and the `(B, N)` weights."""
        wide = torch.promote_types(x_BND.dtype, torch.float32)
        place_BN = mask_BN.to(wide).cumsum(dim=1) * mask_BN
        weight_BN = place_BN / place_BN.sum(dim=1, keepdim=True)
        x_BND = zero_pads(x_BND, mask_BN)
        vector_BD = (weight_BN[:, None] @ x_BND.to(wide)).squeeze(1).to(x_BND.dtype)
        return Pooled(vector_BD, weights=weight_BN)
