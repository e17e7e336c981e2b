"""Constant-space multi-vectors (ConstBERT, MacAvaney, Mallia and Tonellotto, ECIR 2025, section 2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.masks import zero_pads
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("constbert")
class ConstBERT(Aggregator):
    """k vectors, learned linear combinations of the elements by position: [y_1 .. y_k] = W [x_1 .. x_N].

    W has one weight per vector and position. The paper's W has one per pair of channels, too: 115 million for 220
    tokens of width 128 and 32 vectors, as many as its encoder. Shorter sets use the first positions; elements beyond
    the last position share its weights. The paper compares all tokens of a query with a document's k vectors:
    `--aggregator constbert --text-aggregator late`.

    Args:
        dim: width of the elements.
        k: number of vectors; 32 in the published model.
        positions: number of positions with separate weights.
    """

    symmetric = False
    weights_over = "embeddings"

    def __init__(self, dim: int, *, k: int = 8, positions: int = 64) -> None:
        super().__init__()
        check_counts(k=k, positions=positions)
        self.num_embeddings = k
        self.weight_PK = nn.Parameter(torch.empty(positions, k))
        nn.init.kaiming_uniform_(self.weight_PK.T, a=5**0.5)  # the initialisation of nn.Linear

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return vectors `(B, K, D)`, or `(B, D)` if K is 1, and weights `(B, K, N)`; positions count real elements."""
        place_BN = (mask_BN.long().cumsum(dim=1) - 1).clamp(min=0, max=len(self.weight_PK) - 1)
        weight_BKN = zero_pads(nn.functional.embedding(place_BN, self.weight_PK), mask_BN).transpose(1, 2)
        vectors = torch.bmm(weight_BKN.to(x_BND.dtype), zero_pads(x_BND, mask_BN))
        return Pooled(vectors.squeeze(1) if self.num_embeddings == 1 else vectors, weights=weight_BKN)
