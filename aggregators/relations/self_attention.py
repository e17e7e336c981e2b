"""Self-attention, then the mean: SelfAttn in table 1 of VSE-infinity, after LIWE (Wehrmann et al. 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.aggregators.masks import masked_mean, zero_pads
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("self_attention")
class SelfAttention(Aggregator):
    """Self-attention with a learned gate and a residual connection, then the mean.

    Queries, keys and values have the full width, which gives the table's 3.2 M parameters; LIWE's code has queries and
    keys an eighth as wide, and does not scale the scores. The gate starts at 0 as in LIWE, so the aggregator starts as
    a mean. Attention rows sum to 1, so the mean of all attention outputs is the value map of one vector: the elements
    weighted by the mean attention that each receives. Values are thus computed once per set instead of once per
    element.

    Args:
        dim: width of the elements.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the means `(B, D)` of elements plus attention outputs.

        The weights `(B, N)` are the attention that each element receives, averaged over the queries.
        """
        x_BND, size_B1 = zero_pads(x_BND, mask_BN), mask_BN.sum(dim=1, keepdim=True)
        query_BND = (
            self.query(x_BND) * x_BND.shape[-1] ** -0.5
        )  # scaled before the product, which may overflow in float16
        score_BNN = query_BND @ self.key(x_BND).transpose(1, 2)
        attention_BNN = score_BNN.masked_fill(~mask_BN[:, None, :], float("-inf")).softmax(dim=-1)
        weight_BN = zero_pads(attention_BNN, mask_BN).sum(dim=1) / size_B1
        attended_BD = torch.einsum("bn,bnd->bd", weight_BN, x_BND)
        return Pooled(masked_mean(x_BND, mask_BN) + self.gate * self.value(attended_BD), weights=weight_BN)
