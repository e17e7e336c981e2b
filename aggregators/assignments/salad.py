"""SALAD (Izquierdo and Civera, CVPR 2024): optimal transport to clusters and a dustbin, plus a global token."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts, one_vector_aggregator
from polypool.aggregators.assignments.assigning import sinkhorn, unit_length
from polypool.aggregators.masks import zero_pads
from polypool.infra.compute.dropout import Dropout
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("salad")
class SALAD(Aggregator):
    """k + 1 unit vectors: a global token, then the sum of mapped elements of each of k clusters.

    Scores of the clusters, and one learned dustbin score, pass through Sinkhorn iterations: each element has mass 1,
    each cluster receives 1, the dustbin the rest. Three MLPs with one hidden layer compute scores, elements and token.
    The paper concatenates the vectors, which `aligned_mean` reproduces; its clusters are narrower than its token, here
    all have the width of the elements.

    The paper's sets have many more elements than clusters. For a set of n < 2k elements each cluster receives n / 2k,
    so that half of the mass remains for the dustbin.

    Args:
        dim: width of the elements.
        k: number of clusters; 64 in the paper, 16 in its smallest model.
        hidden: width of the MLPs' hidden layer.
        iterations: Sinkhorn iterations; 3 in the paper.
        dropout: dropout rate inside the MLPs of scores and elements; 0.3 in the authors' code.
        global_feature: aggregator that computes the global feature if the encoder returns none.
    """

    takes_global_feature = True
    weights_over = "embeddings"

    def __init__(
        self,
        dim: int,
        *,
        k: int = 8,
        hidden: int = 512,
        iterations: int = 3,
        dropout: float = 0.3,
        global_feature: str = "mean",
    ) -> None:
        super().__init__()
        check_counts(k=k, hidden=hidden, iterations=iterations)
        self.num_embeddings, self.iterations = k + 1, iterations
        self.global_pool = one_vector_aggregator(global_feature, dim, parameter="global_feature")
        self.symmetric = self.global_pool.symmetric
        self.token = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))
        self.element, self.score = (
            nn.Sequential(nn.Linear(dim, hidden), Dropout(dropout), nn.ReLU(), nn.Linear(hidden, width))
            for width in (dim, k)
        )
        self.dustbin = nn.Parameter(torch.ones(()))

    def forward(self, x_BND: Tensor, mask_BN: Tensor, *, global_feature_BS: Tensor | None = None) -> Pooled:
        """Return vectors `(B, K + 1, D)` and weights `(B, K + 1, N)`; the token's weights are 0."""
        x_BND = zero_pads(x_BND, mask_BN)
        if global_feature_BS is None:
            global_feature_BS = self.global_pool(x_BND, mask_BN).vectors
        token_B1D = self.token(global_feature_BS)[:, None]
        plan_BKN = self._plan(self.score(x_BND).transpose(1, 2), mask_BN)
        sum_BKD = plan_BKN.to(x_BND.dtype) @ self.element(x_BND)
        vectors = unit_length(torch.cat((token_B1D, sum_BKD), dim=1)).to(x_BND.dtype)
        return Pooled(vectors, weights=nn.functional.pad(plan_BKN, (0, 0, 1, 0)))

    def _plan(self, score_BKN: Tensor, mask_BN: Tensor) -> Tensor:
        """Return each element's mass per cluster, `(B, K, N)`."""
        clusters = score_BKN.shape[1]
        dustbin_B1N = self.dustbin.to(score_BKN.dtype).expand(score_BKN.shape[0], 1, score_BKN.shape[-1])
        count_B1 = mask_BN.sum(dim=1, keepdim=True).to(torch.promote_types(score_BKN.dtype, torch.float32))
        mass_B1 = (count_B1 / (2 * clusters)).clamp(max=1.0)
        plan_BMN = sinkhorn(
            torch.cat((score_BKN, dustbin_B1N), dim=1),
            mask_BN,
            mass_BK=torch.cat((mass_B1.expand(-1, clusters), count_B1 - clusters * mass_B1), dim=1),
            mass_B=torch.ones_like(count_B1[:, 0]),
            iterations=self.iterations,
            elements_last=True,
        )
        return plan_BMN[:, :-1]
