"""The Set Transformer (Lee et al., ICML 2019): self-attention through inducing points, then PMA."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.masks import zero_pads
from polypool.aggregators.queries.pma import AttentionBlock
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("set_transformer")
class SetTransformer(Aggregator):
    """Induced self-attention blocks, PMA with k seeds, self-attention of the k vectors, and a linear map.

    rFF(SAB(PMA_k(ISAB(ISAB(X))))), Eq. 12 to 14 with the paper's number of blocks. In an ISAB (Eq. 9, 10) learned
    inducing points attend to the elements and the elements attend to the result, so the cost is linear in the set's
    size. Blocks as in `pma`. The authors' code has two SABs; the paper's equations have one, as here.

    Args:
        dim: width of the elements; `heads` must divide it.
        k: number of seeds and vectors.
        layers: number of ISABs.
        points: inducing points per ISAB.
        heads: attention heads.
    """

    weights_over = "embeddings"

    def __init__(self, dim: int, *, k: int = 1, layers: int = 2, points: int = 32, heads: int = 4) -> None:
        super().__init__()
        check_counts(k=k, layers=layers, points=points)
        self.num_embeddings = k
        self.induced = nn.ModuleList(_Induced(dim, points=points, heads=heads) for _ in range(layers))
        self.seed_1KD = nn.Parameter(nn.init.xavier_uniform_(torch.empty(1, k, dim)))
        self.pool = AttentionBlock(dim, heads=heads)
        self.among = AttentionBlock(dim, heads=heads)
        self.out = nn.Linear(dim, dim)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return vectors `(B, D)`, or `(B, K, D)` if K > 1, and PMA's weights `(B, K, N)`."""
        x_BND = zero_pads(x_BND, mask_BN)
        for block in self.induced:
            x_BND = block(x_BND, mask_BN)
        vectors, weight_BKN = self.pool(self.seed_1KD, x_BND, mask_BN)
        vectors, _ = self.among(vectors, vectors, mask_BN.new_ones(vectors.shape[:2]))
        vectors = self.out(vectors)
        return Pooled(vectors.squeeze(1) if self.num_embeddings == 1 else vectors, weights=weight_BKN)


class _Induced(nn.Module):
    """Induced self-attention block, ISAB."""

    def __init__(self, dim: int, *, points: int, heads: int) -> None:
        super().__init__()
        self.point_1PD = nn.Parameter(nn.init.xavier_uniform_(torch.empty(1, points, dim)))
        self.gather = AttentionBlock(dim, heads=heads)
        self.spread = AttentionBlock(dim, heads=heads)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the elements `(B, N, D)`; padding is never attended to."""
        met_BPD, _ = self.gather(self.point_1PD, x_BND, mask_BN)
        return self.spread(x_BND, met_BPD, mask_BN.new_ones(met_BPD.shape[:2]))[0]
