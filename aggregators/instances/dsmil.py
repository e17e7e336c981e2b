"""Dual-stream multiple instance learning, DSMIL (Li, Li and Eliceiri, CVPR 2021, and its code)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.masks import softmax_over_elements, zero_pads
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("dsmil")
class DSMIL(Aggregator):
    """The mean of two streams: an attention that the element with the best score asks for, and this element's score.

    Elements weigh by a softmax of the product of their query and that of the best, the critical instance; as in the
    code one MLP makes all queries, and values are the elements themselves. The paper's classes are `k` vectors here,
    each with a linear score w of its own.

    Deviation: the paper halves the sum of two scores of a class, that of the critical instance and that of a second
    classifier of what the attention makes; a loss of the first alone teaches which element is critical. A pooling has
    no class, so here the critical instance's part along w is added to the attention's vector, and the sum is halved.
    A classifier w of the vector gives the paper's mean, where both of its classifiers are one, and w has a gradient.

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
        """Return the `(B, D)` vectors, `(B, K, D)` of more scores, and the weights of the attention `(B, K, N)`."""
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
