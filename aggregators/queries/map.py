"""Multihead attention pooling, MAP: the head of SigLIP and of big_vision's ViTs (Zhai et al., CVPR 2022)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.attention import Attention, init_linear, mlp
from polypool.aggregators.masks import zero_pads
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("map")
class MAP(Aggregator):
    """k learned queries attend to the elements; a vector is the attention output plus an MLP of its layer norm.

    As in big_vision, neither queries nor elements are normalised, and the attention has no residual connection. Maps
    start from Xavier's uniform weights. CoCa's attentional pooling (Yu et al. 2022) is only the attention, with a
    norm. Deviations: exact GELU instead of the tanh approximation; keys have no bias, because the softmax would cancel
    it.

    Args:
        dim: width of the elements; `heads` must divide it.
        k: number of queries and vectors.
        heads: attention heads; the published models have one per 64 to 72 channels.
        hidden: inner width of the MLP, as a multiple of `dim`.
    """

    weights_over = "embeddings"

    def __init__(self, dim: int, *, k: int = 1, heads: int = 8, hidden: int = 4) -> None:
        super().__init__()
        check_counts(k=k, hidden=hidden)
        self.num_embeddings = k
        self.query_KD = nn.Parameter(torch.empty(k, dim))
        self.attention = Attention(dim, heads=heads)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = mlp(dim, hidden=hidden)
        nn.init.xavier_uniform_(self.query_KD)
        init_linear(self, weight=nn.init.xavier_uniform_)
        for linear in (part for part in self.mlp if isinstance(part, nn.Linear)):
            nn.init.normal_(linear.bias, std=1e-6)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return vectors `(B, D)`, or `(B, K, D)` if K > 1, and weights `(B, K, N)`."""
        got_BKD, weight_BKN = self.attention(self.query_KD[None], zero_pads(x_BND, mask_BN), mask_BN)
        vectors = got_BKD + self.mlp(self.norm(got_BKD))
        return Pooled(vectors.squeeze(1) if self.num_embeddings == 1 else vectors, weights=weight_BKN)
