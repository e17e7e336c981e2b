"""Dual-stream multiple instance learning, DSMIL (Li, Li and Eliceiri, CVPR 2021, and its code)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.masks import softmax_over_elements, zero_pads
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("dsmil")
class DSMIL(Aggregator):
    """The mean of two streams: attention with the highest-scored element as query, and this element's score.

    Attention weights are a softmax of the dot products with the query of the highest-scored element, the critical
    instance. As in the authors' code, one MLP computes all queries, and values are the elements. The paper's classes
    are the `k` vectors here, each with its linear score w.

    Deviation: the paper averages two scores of a class: the critical instance's, and a second classifier's of the
    attention output; only a loss on the first teaches which element is critical. A pooling has no classes, so here the
    critical instance's component along w is added to the attention output, and the sum is halved. A classifier w on
    that vector gives the paper's mean (with both classifiers tied), and w gets a gradient.

    Args:
        dim: width of the elements.
        k: number of scores and vectors.
        hidden: width of the queries.
    """

    weights_over = "embeddings"

    def __init__(self, dim: int, *, k: int = 1, hidden: int = 128) -> None:
        super().__init__()
        check_counts(k=k, hidden=hidden)
        self.num_embeddings = k
        self.score = nn.Linear(dim, k, bias=False)
        self.query = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.Tanh())

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return vectors `(B, D)`, or `(B, K, D)` if K > 1, and attention weights `(B, K, N)`."""
        x_BND = zero_pads(x_BND, mask_BN)
        wide = torch.promote_types(x_BND.dtype, torch.float32)
        score_KD = self.score.weight.to(wide)
        score_BKN = torch.einsum("kd,bnd->bkn", score_KD, x_BND.to(wide))
        best_BK1 = score_BKN.masked_fill(~mask_BN[:, None], float("-inf")).argmax(dim=2, keepdim=True)
        along_BKD = score_BKN.gather(2, best_BK1) * score_KD / score_KD.square().sum(dim=1, keepdim=True)
        query_BNH = self.query(x_BND)
        best_BKH = query_BNH.gather(1, best_BK1.expand(-1, -1, query_BNH.shape[2]))
        logit_BKN = best_BKH @ query_BNH.transpose(1, 2) * query_BNH.shape[2] ** -0.5
        weight_BKN = softmax_over_elements(logit_BKN, mask_BN[:, None])
        vectors = ((weight_BKN.to(wide) @ x_BND.to(wide) + along_BKD) / 2).to(x_BND.dtype)
        return Pooled(vectors.squeeze(1) if self.num_embeddings == 1 else vectors, weights=weight_BKN)
