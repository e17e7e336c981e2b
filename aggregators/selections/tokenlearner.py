"""TokenLearner (Ryoo et al., NeurIPS 2021): k soft tokens with learned weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.masks import masked_softmax, zero_pads
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("tokenlearner")
class TokenLearner(Aggregator):
    """k weighted means of the elements; an MLP scores each element, and a softmax over the set gives the weights.

    Version 1.1 of the authors' code, which they found better: weights depend on single elements, where the paper's
    version (four convolutions and a sigmoid) needs a grid. The MLP reads layer-normalised elements; the tokens are
    means of the unnormalised elements. Deviations: exact GELU instead of the tanh approximation; the last map has no
    bias, because the softmax would cancel it.

    Args:
        dim: width of the elements.
        k: number of tokens and vectors.
        hidden: width of the MLP's inner layer.
    """

    weights_over = "embeddings"

    def __init__(self, dim: int, *, k: int = 8, hidden: int = 64) -> None:
        super().__init__()
        check_counts(k=k, hidden=hidden)
        self.num_embeddings = k
        inner, outer = nn.Linear(dim, hidden), nn.Linear(hidden, k, bias=False)
        self.score = nn.Sequential(nn.LayerNorm(dim, eps=1e-6), inner, nn.GELU(), outer)
        for linear in (inner, outer):
            nn.init.xavier_uniform_(linear.weight)
        nn.init.normal_(inner.bias, std=1e-6)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return tokens `(B, K, D)`, or `(B, D)` if K is 1, and weights `(B, K, N)`."""
        x_BND = zero_pads(x_BND, mask_BN)
        weight_BKN = masked_softmax(self.score(x_BND), mask_BN).transpose(1, 2)
        vectors = torch.bmm(weight_BKN.to(x_BND.dtype), x_BND)
        return Pooled(vectors.squeeze(1) if self.num_embeddings == 1 else vectors, weights=weight_BKN)
