"""Set Transformer++ (Zhang et al., ICML 2022): set norm, and skip connections without intermediate maps or norms."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.attention import attend, check_heads
from polypool.aggregators.masks import zero_pads
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("set_transformer_pp")
class SetTransformerPP(Aggregator):
    """`set_transformer` for many layers: pre-norm blocks with clean skip connections.

    ISABs, a set norm, PMA with k seeds, self-attention of the k vectors, and a linear map. A set norm divides by one
    standard deviation over all numbers of a set instead of one per element, which preserves the relative norms of
    elements. As in the authors' code, inducing points are not normalised as queries, and blocks after the set norm have
    no norms. Deviations: padding is masked (its scores are 0 in the code); one self-attention block of the vectors as
    in `set_transformer` (three in the code).

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
        self.norm = SetNorm(dim)
        self.seed_1KD = nn.Parameter(nn.init.xavier_uniform_(torch.empty(1, k, dim)))
        self.pool, self.among = SkipBlock(dim, heads=heads), SkipBlock(dim, heads=heads)
        self.out = nn.Linear(dim, dim)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return vectors `(B, D)`, or `(B, K, D)` if K > 1, and the seeds' weights `(B, K, N)`."""
        x_BND = zero_pads(x_BND, mask_BN)
        for block in self.induced:
            x_BND = block(x_BND, mask_BN)
        vectors, weight_BKN = self.pool(self.seed_1KD, self.norm(x_BND, mask_BN), mask_BN)
        vectors, _ = self.among(vectors, vectors, mask_BN.new_ones(vectors.shape[:2]))
        vectors = self.out(vectors)
        return Pooled(vectors.squeeze(1) if self.num_embeddings == 1 else vectors, weights=weight_BKN)


class SetNorm(nn.Module):
    """Standardisation over all numbers of a set, with a learned scale and shift per channel.

    Args:
        dim: width of the elements.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x_BND: Tensor, mask_BN: Tensor | None = None) -> Tensor:
        """Return the elements `(B, N, D)`, finite in the padding; without a mask all elements are real."""
        wide_BND = x_BND.to(torch.promote_types(x_BND.dtype, torch.float32))
        real_BN1 = (x_BND.new_ones(x_BND.shape[:2], dtype=torch.bool) if mask_BN is None else mask_BN)[
            ..., None
        ]
        count_B11 = real_BN1.sum(dim=1, keepdim=True) * x_BND.shape[-1]
        centred_BND = wide_BND - (wide_BND * real_BN1).sum(dim=(1, 2), keepdim=True) / count_B11
        variance_B11 = (centred_BND.square() * real_BN1).sum(dim=(1, 2), keepdim=True) / count_B11
        return (centred_BND * (variance_B11 + 1e-5).rsqrt()).to(x_BND.dtype) * self.weight + self.bias


class SkipBlock(nn.Module):
    """An attention block whose skip connection starts at the unprojected queries: q + a, then + ReLU(W norm(q + a)).

    Scores are divided by the root of the full width; keys have no bias, because the softmax would cancel it.

    Args:
        dim: width of queries and elements; `heads` must divide it.
        heads: attention heads.
        normed: apply a set norm before the element maps and before the row-wise layer.
        query_normed: apply a set norm before the query map.
    """

    def __init__(self, dim: int, *, heads: int, normed: bool = False, query_normed: bool = False) -> None:
        super().__init__()
        check_heads(dim, heads)
        self.heads = heads
        self.query, self.value, self.row = (nn.Linear(dim, dim) for _ in range(3))
        self.key = nn.Linear(dim, dim, bias=False)
        self.norm_query = SetNorm(dim) if query_normed else None
        self.norm, self.norm_row = (SetNorm(dim), SetNorm(dim)) if normed else (None, None)

    def forward(
        self, query_BKD: Tensor, x_BND: Tensor, mask_BN: Tensor, *, query_mask_BK: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return outputs `(B, K, D)` and weights `(B, K, N)`, averaged over heads."""
        asked_BKD = query_BKD if self.norm_query is None else self.norm_query(query_BKD, query_mask_BK)
        got_BKD, weight_BKHN = attend(
            self.query(asked_BKD),
            x_BND if self.norm is None else self.norm(x_BND, mask_BN),
            mask_BN,
            key=self.key,
            value=self.value,
            heads=self.heads,
            scale=x_BND.shape[-1] ** -0.5,
        )
        got_BKD = query_BKD + got_BKD
        row_BKD = got_BKD if self.norm_row is None else self.norm_row(got_BKD, query_mask_BK)
        return got_BKD + self.row(row_BKD).relu(), weight_BKHN.mean(dim=2)


class _Induced(nn.Module):
    """Induced self-attention block, ISAB."""

    def __init__(self, dim: int, *, points: int, heads: int) -> None:
        super().__init__()
        self.point_1PD = nn.Parameter(nn.init.xavier_uniform_(torch.empty(1, points, dim)))
        self.gather = SkipBlock(dim, heads=heads, normed=True)
        self.spread = SkipBlock(dim, heads=heads, normed=True, query_normed=True)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the elements `(B, N, D)`; padding is never attended to."""
        met_BPD, _ = self.gather(self.point_1PD, x_BND, mask_BN)
        real_BP = mask_BN.new_ones(met_BPD.shape[:2])
        return self.spread(x_BND, met_BPD, real_BP, query_mask_BK=mask_BN)[0]
