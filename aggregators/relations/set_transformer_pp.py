"""Set Transformer++ (Zhang et al., ICML 2022): set norm, and skip connections that leave elements as they are."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.attention import attend, check_heads
from polypool.aggregators.masks import zero_pads
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("set_transformer_pp")
class SetTransformerPP(Aggregator):
    """`set_transformer` for many layers: blocks add to elements as they came, and norms come before maps.

    ISABs, a set norm, k seeds that pool, the vectors looking at each other, and a linear map. A set norm divides by one
    deviation of all numbers of a set and not by one of each element, so that it keeps how elements differ in length.
    As in the code, learned points are not normed as queries, and blocks after the set norm have no norms. Deviations:
    pads take no part, which have scores of 0 in the code; there is one block of the vectors among themselves, as in
    `set_transformer`, where the code has three.

    Args:
        dim: width of the elements, which `heads` must divide.
        k: number of seeds and vectors.
        layers: how many ISABs.
        points: learned points of each.
        heads: of every attention.
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
        """Return the `(B, D)` vectors, `(B, K, D)` of more than one seed, and the seeds' weights `(B, K, N)`."""
        x_BND = zero_pads(x_BND, mask_BN)
        for block in self.induced:
            x_BND = block(x_BND, mask_BN)
        vectors, weight_BKN = self.pool(self.seed_1KD, self.norm(x_BND, mask_BN), mask_BN)
        vectors, _ = self.among(vectors, vectors, mask_BN.new_ones(vectors.shape[:2]))
        vectors = self.out(vectors)
        return Pooled(vectors.squeeze(1) if self.num_embeddings == 1 else vectors, weights=weight_BKN)


class SetNorm(nn.Module):
    """The mean and the deviation of all numbers of a set become 0 and 1, and channels have a learned scale and shift.

    Args:
        dim: width of the elements.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x_BND: Tensor, mask_BN: Tensor | None = None) -> Tensor:
        """Return the elements `(B, N, D)`, finite in the pads; all are real without a mask."""
        wide_BND = x_BND.to(torch.promote_types(x_BND.dtype, torch.float32))
        real_BN1 = (x_BND.new_ones(x_BND.shape[:2], dtype=torch.bool) if mask_BN is None else mask_BN)[
            ..., None
        ]
        count_B11 = real_BN1.sum(dim=1, keepdim=True) * x_BND.shape[-1]
        centred_BND = wide_BND - (wide_BND * real_BN1).sum(dim=(1, 2), keepdim=True) / count_B11
        variance_B11 = (centred_BND.square() * real_BN1).sum(dim=(1, 2), keepdim=True) / count_B11
        return (centred_BND * (variance_B11 + 1e-5).rsqrt()).to(x_BND.dtype) * self.weight + self.bias


class SkipBlock(nn.Module):
    """An attention block whose queries are added as they came, before their map: q + a, then + ReLU(W norm(q + a)).

    Scores are divided by the root of the whole width; keys have no bias, which no softmax sees.

    Args:
        dim: width of queries and elements, which `heads` must divide.
        heads: of the attention.
        normed: whether a set norm precedes the maps of elements, and of the row.
        query_normed: likewise of queries.
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
        """Return `(B, K, D)`, one for each query, and the weights `(B, K, N)`, the mean over heads."""
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
    """Self-attention of a set by way of learned points."""

    def __init__(self, dim: int, *, points: int, heads: int) -> None:
        super().__init__()
        self.point_1PD = nn.Parameter(nn.init.xavier_uniform_(torch.empty(1, points, dim)))
        self.gather = SkipBlock(dim, heads=heads, normed=True)
        self.spread = SkipBlock(dim, heads=heads, normed=True, query_normed=True)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the elements `(B, N, D)`; pads attend, and nothing attends to them."""
        met_BPD, _ = self.gather(self.point_1PD, x_BND, mask_BN)
        real_BP = mask_BN.new_ones(met_BPD.shape[:2])
        return self.spread(x_BND, met_BPD, real_BP, query_mask_BK=mask_BN)[0]
