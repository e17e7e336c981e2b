"""Bag of queries, BoQ (Ali-bey, Chaib-draa and Giguere, CVPR 2024)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.attention import check_heads
from polypool.aggregators.masks import zero_pads
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("boq")
class BoQ(Aggregator):
    """Blocks of self-attention, each read by its own learned queries; a linear map mixes all outputs to k vectors.

    A block passes the elements through a transformer layer (post-norm, ReLU); its queries attend to each other, then to
    the elements. A linear map along the queries of all blocks gives k rows, the vectors. The published descriptor
    concatenates and normalises these rows. Its convolution that reduces the channels of a grid is left to the encoder;
    the layer norm after it is included.

    Args:
        dim: width of the elements; `heads` must divide it.
        k: number of rows and vectors; 32 in the authors' code.
        layers: number of blocks.
        queries: learned queries per block; 32 in the code, 64 in its published models.
        heads: attention heads; the code has one per 64 channels.
    """

    def __init__(self, dim: int, *, k: int = 1, layers: int = 2, queries: int = 32, heads: int = 8) -> None:
        super().__init__()
        check_counts(k=k, layers=layers, queries=queries)
        check_heads(dim, heads)
        self.num_embeddings = k
        self.norm = nn.LayerNorm(dim)
        self.blocks = nn.ModuleList(_Block(dim, queries=queries, heads=heads) for _ in range(layers))
        self.mix = nn.Linear(layers * queries, k)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return vectors `(B, D)`, or `(B, K, D)` if K > 1."""
        x_BND = self.norm(zero_pads(x_BND, mask_BN))
        answers = []
        for block in self.blocks:
            x_BND, answer_BQD = block(x_BND, mask_BN)
            answers.append(answer_BQD)
        vectors = self.mix(torch.cat(answers, dim=1).transpose(1, 2)).transpose(1, 2)
        return Pooled(vectors.squeeze(1) if self.num_embeddings == 1 else vectors)


class _Block(nn.Module):
    """A transformer layer over the elements, and queries that attend to its output."""

    def __init__(self, dim: int, *, queries: int, heads: int) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.0, batch_first=True)
        self.query_1QD = nn.Parameter(torch.randn(1, queries, dim))
        self.among = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm_query = nn.LayerNorm(dim)
        self.ask = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm_answer = nn.LayerNorm(dim)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Return the elements `(B, N, D)` and the query outputs `(B, Q, D)`; padding is never attended to."""
        x_BND = zero_pads(self.layer(x_BND, src_key_padding_mask=~mask_BN), mask_BN)
        query_1QD = self.query_1QD
        query_1QD = self.norm_query(query_1QD + self.among(*[query_1QD] * 3, need_weights=False)[0])
        answer_BQD, _ = self.ask(
            query_1QD.expand(x_BND.shape[0], -1, -1),
            x_BND,
            x_BND,
            key_padding_mask=~mask_BN,
            need_weights=False,
        )
        return x_BND, self.norm_answer(answer_BQD)
