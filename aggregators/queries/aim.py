"""The attentive probe of AIM (El-Nouby et al., ICML 2024): attention over batch-normalised elements."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.attention import attend, check_heads
from polypool.aggregators.masks import zero_pads
from polypool.infra.compute.batchnorm import SetBatchNorm
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("aim")
class AIM(Aggregator):
    """k learned queries attend to batch-normalised elements, without an output map.

    Key and value maps have no bias. The batch norm is not affine. In training it uses the real elements of the global
    batch, in evaluation running statistics, so that padding never changes a result, and batch mates only in training.
    The published probe averages its queries (it has one) and ends with a linear classifier, which belongs to the task
    here.

    Args:
        dim: width of the elements; `heads` must divide it.
        k: number of queries and vectors.
        heads: attention heads; 12 in the authors' code.
    """

    weights_over = "embeddings"

    def __init__(self, dim: int, *, k: int = 1, heads: int = 8) -> None:
        super().__init__()
        check_counts(k=k)
        check_heads(dim, heads)
        self.num_embeddings, self.heads = k, heads
        self.norm = SetBatchNorm(dim, affine=False, eps=1e-6)
        self.query_KD = nn.Parameter(0.02 * torch.randn(k, dim))
        self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim, bias=False)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return vectors `(B, D)`, or `(B, K, D)` if K > 1, and weights `(B, K, N)`."""
        x_BND = zero_pads(x_BND, mask_BN)
        normal_BND = self.norm(x_BND.flatten(0, 1), mask_BN.flatten()).view_as(x_BND)
        vectors, weight_BKHN = attend(
            self.query_KD[None], normal_BND, mask_BN, key=self.key, value=self.value, heads=self.heads
        )
        weight_BKN = weight_BKHN.mean(dim=2)
        return Pooled(vectors.squeeze(1) if self.num_embeddings == 1 else vectors, weights=weight_BKN)
