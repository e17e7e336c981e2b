"""Position-weighted mean pooling of causal text encoders (SGPT, Muennighoff 2022, section 3.2.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.aggregators.masks import zero_pads
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("position_mean")
class PositionMean(Aggregator):
    """A mean with weights n / (1 + ... + N): in a causal encoder, later elements have attended to more of the text.

    Deviation: positions count real elements only. sentence-transformers also counts padding before them, which flattens
    the weights of left-padded sets; for right-padded sets both are equal.
    """

    averages = True
    symmetric = False

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the weighted means `(B, D)`, summed in float32 at least, and the weights `(B, N)`."""
        wide = torch.promote_types(x_BND.dtype, torch.float32)
        place_BN = mask_BN.to(wide).cumsum(dim=1) * mask_BN
        weight_BN = place_BN / place_BN.sum(dim=1, keepdim=True)
        x_BND = zero_pads(x_BND, mask_BN)
        vector_BD = (weight_BN[:, None] @ x_BND.to(wide)).squeeze(1).to(x_BND.dtype)
        return Pooled(vector_BD, weights=weight_BN)
