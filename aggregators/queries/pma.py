"""Pooling by multihead attention, PMA, from the Set Transformer's decoder (Lee et al., ICML 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.attention import attend, check_heads
from polypool.aggregators.masks import zero_pads
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("pma")
class PMA(Aggregator):
    """k learned seeds attend to the elements in one multihead attention block (section 3.2, Eq. 11).

    Args:
        dim: width of the elements; `heads` must divide it.
        k: number of seeds and vectors.
        heads: attention heads; 4 in the authors' code.
    """

    weights_over = "embeddings"

    def __init__(self, dim: int, *, k: int = 1, heads: int = 4) -> None:
        super().__init__()
        check_counts(k=k)
        self.num_embeddings = k
        self.seed_1KD = nn.Parameter(nn.init.xavier_uniform_(torch.empty(1, k, dim)))
        self.block = AttentionBlock(dim, heads=heads)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return vectors `(B, D)`, or `(B, K, D)` if K > 1, and weights `(B, K, N)`."""
        vectors, weight_BKN = self.block(self.seed_1KD, zero_pads(x_BND, mask_BN), mask_BN)
        return Pooled(vectors.squeeze(1) if self.num_embeddings == 1 else vectors, weights=weight_BKN)


class AttentionBlock(nn.Module):
    """The Set Transformer's MAB (Eq. 6 and 7): residual attention and a residual row-wise layer, each post-norm.

    As in the authors' code, scores are divided by the root of the full width, the residual connection starts at the
    projected queries, attention has no output map, and the row-wise layer is a linear map with ReLU. The norms are in
    the paper's equations and optional in the code. Keys have no bias, because the softmax would cancel it.

    Args:
        dim: width of queries and elements; `heads` must divide it.
        heads: attention heads.
    """

    def __init__(self, dim: int, *, heads: int) -> None:
        super().__init__()
        check_heads(dim, heads)
        self.heads = heads
        self.query, self.value = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim, bias=False)
        self.row = nn.Linear(dim, dim)
        self.norm, self.norm_row = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, query_BKD: Tensor, x_BND: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs `(B, K, D)` and weights `(B, K, N)`, averaged over heads."""
        query_BKD = self.query(query_BKD)
        scale = query_BKD.shape[-1] ** -0.5
        got_BKD, weight_BKHN = attend(
            query_BKD, x_BND, mask_BN, key=self.key, value=self.value, heads=self.heads, scale=scale
        )
        got_BKD = self.norm(query_BKD + got_BKD)
        return self.norm_row(got_BKD + self.row(got_BKD).relu()), weight_BKHN.mean(dim=2)
