"""Learned queries with self-attention and cross-attention: the Q-Former of BLIP-2 (Li et al., ICML 2023)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.attention import Attention, init_linear, mlp
from polypool.aggregators.masks import zero_pads
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("qformer")
class QFormer(Aggregator):
    """k learned queries pass through layers of self-attention, cross-attention to the elements and an MLP.

    Each sublayer is residual and post-norm as in BERT, with BERT's initialisation (standard deviation 0.02). The
    published model has 32 queries in 12 layers initialised from BERT, with cross-attention in every other layer; here
    every layer has it. The related Perceiver resampler of Flamingo (Alayrac et al. 2022) is pre-norm and adds the
    queries to the attended elements. No dropout. Keys have no bias, because the softmax would cancel it.

    Args:
        dim: width of the elements; `heads` must divide it.
        k: number of queries and vectors.
        layers: number of layers.
        heads: attention heads; the published model has one per 64 channels.
    """

    weights_over = "embeddings"

    def __init__(self, dim: int, *, k: int = 4, layers: int = 2, heads: int = 8) -> None:
        super().__init__()
        check_counts(k=k, layers=layers)
        self.num_embeddings = k
        self.query_KD = nn.Parameter(0.02 * torch.randn(k, dim))
        self.norm = nn.LayerNorm(dim, eps=1e-12)
        self.layers = nn.ModuleList(_Layer(dim, heads=heads) for _ in range(layers))
        init_linear(self, weight=lambda weight: nn.init.normal_(weight, std=0.02))

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return vectors `(B, D)`, or `(B, K, D)` if K > 1, and the last layer's weights `(B, K, N)`."""
        x_BND = zero_pads(x_BND, mask_BN)
        vectors = self.norm(self.query_KD).expand(x_BND.shape[0], -1, -1)
        for layer in self.layers:
            vectors, weight_BKN = layer(vectors, x_BND, mask_BN)
        return Pooled(vectors.squeeze(1) if self.num_embeddings == 1 else vectors, weights=weight_BKN)


class _Layer(nn.Module):
    """Self-attention of the queries, cross-attention to the elements, an MLP; each residual and post-norm."""

    def __init__(self, dim: int, *, heads: int) -> None:
        super().__init__()
        self.among, self.ask = Attention(dim, heads=heads), Attention(dim, heads=heads)
        self.mlp = mlp(dim)
        self.norm_among, self.norm_ask, self.norm_mlp = (nn.LayerNorm(dim, eps=1e-12) for _ in range(3))

    def forward(self, query_BKD: Tensor, x_BND: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Return the queries `(B, K, D)` and their cross-attention weights `(B, K, N)`."""
        all_BK = mask_BN.new_ones(query_BKD.shape[:2])
        query_BKD = self.norm_among(query_BKD + self.among(query_BKD, query_BKD, all_BK)[0])
        got_BKD, weight_BKN = self.ask(query_BKD, x_BND, mask_BN)
        query_BKD = self.norm_ask(query_BKD + got_BKD)
        return self.norm_mlp(query_BKD + self.mlp(query_BKD)), weight_BKN
