"""Score attention (Stefanini et al., ICPR 2020): cross-attention to the other modality gives each element's weight."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Context, Pooled
from polypool.aggregators.masks import zero_pads
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("score_attention")
class ScoreAttention(Aggregator):
    """Cross-attention that ends in one score per element; a softmax of the scores weights the elements (Eq. 1 to 4).

    Queries are the elements; keys and values are the context: scaled dot-product attention, heads concatenated, and a
    linear map to a score. `k` scorers with separate parameters give k vectors. Two changes reduce the cost and not the
    result: the map to a score is applied to the values first, so a value is one number per head; and keys, values and
    score have no bias, because the softmax would cancel it.

    With all pairs, each set and each context is projected once.

    Args:
        dim: width of the elements and of the context.
        k: number of scorers and vectors.
        heads: attention heads per scorer; must divide `dim`.
        kv_div: divisor of the head width. 1 in the paper; a public code by one of its authors uses 4, and also divides
            the result by the set's size, which cosine similarity ignores and which is omitted here.
    """

    context = "set"
    weights_over = "embeddings"

    def __init__(self, dim: int, *, k: int = 1, heads: int = 8, kv_div: int = 1) -> None:
        super().__init__()
        if min(k, heads, kv_div) < 1 or dim % (heads * kv_div):
            raise InputError(
                f"score_attention splits a width of {dim} into {heads} heads and these by kv_div={kv_div}; all must be "
                f"at least 1 and {heads} x {kv_div} must divide {dim}, and k={k} must be at least 1"
            )
        self.num_embeddings = k
        self.heads = heads
        self.head_width = dim // heads // kv_div
        inner = heads * self.head_width
        self.query = nn.Linear(dim, k * inner)
        self.key = nn.Linear(dim, k * inner, bias=False)
        self.value = nn.Linear(dim, k * inner, bias=False)
        self.score = nn.Parameter(torch.empty(k, inner))
        nn.init.zeros_(self.query.bias)
        for linear in (self.query, self.key, self.value):
            for scorer in linear.weight.chunk(k):
                nn.init.xavier_uniform_(scorer)
        for scorer in self.score.split(1):
            nn.init.xavier_uniform_(scorer)

    def queries(self, x_BND: Tensor) -> Tensor:
        """Return the elements' queries `(B, N, K, H, E)` for K scorers with H heads of width E, scaled by 1/sqrt(E)."""
        return self.query(x_BND).unflatten(-1, (self.num_embeddings, self.heads, -1)) * self.head_width**-0.5

    def keys(self, context_BMD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the context's keys `(B, M, K, H, E)` and values `(B, M, K, H)`."""
        split = (len(self.score), self.heads, self.head_width)
        score_weight = torch.einsum(
            "khe,khed->khd", self.score.view(split), self.value.weight.unflatten(0, split)
        )
        value_BMKH = nn.functional.linear(context_BMD, score_weight.flatten(0, 1)).unflatten(-1, split[:2])
        return self.key(context_BMD).unflatten(-1, split), value_BMKH

    def scores(self, x_BND: Tensor, context_BMD: Tensor, context_mask_BM: Tensor) -> Tensor:
        """Return each element's score per scorer, `(B, K, N)`; finite in the padding."""
        key_BMKHE, value_BMKH = self.keys(context_BMD)
        logit_BKHNM = self._logits(x_BND, key_BMKHE)
        logit_BKHNM = logit_BKHNM.masked_fill(~context_mask_BM[:, None, None, None], float("-inf"))
        return torch.einsum("bkhnm,bmkh->bkn", logit_BKHNM.softmax(dim=-1), value_BMKH)

    def _logits(self, x_BND: Tensor, key_BMKHE: Tensor) -> Tensor:
        """Return the products of queries and keys, `(B, K, H, N, M)`.

        q . k = (W x + b) . k = x . (W' k) + b . k. The second form maps the keys instead of the elements; it is used
        when the context has few enough elements that it takes fewer multiplications.
        """
        elements, keys, width = x_BND.shape[1], key_BMKHE.shape[1], self.head_width
        if keys * (width + elements) >= elements * width:
            return torch.einsum("bnkhe,bmkhe->bkhnm", self.queries(x_BND), key_BMKHE)
        split = key_BMKHE.shape[2:]
        bias_BKHM = torch.einsum("khe,bmkhe->bkhm", self.query.bias.view(split), key_BMKHE)
        key_SBME, weight_SED = key_BMKHE.flatten(2, 3).unbind(2), self.query.weight.unflatten(0, (-1, width))
        key_BSMD = torch.stack(
            [key_BME @ weight_ED for key_BME, weight_ED in zip(key_SBME, weight_SED, strict=True)], dim=1
        )
        logit_BNS = x_BND @ key_BSMD.flatten(1, 2).mT
        logit_BKHNM = logit_BNS.unflatten(2, (*split[:2], keys)).permute(0, 2, 3, 1, 4)
        return (logit_BKHNM + bias_BKHM[..., None, :]) * width**-0.5

    def forward(self, x_BND: Tensor, mask_BN: Tensor, *, context: Context) -> Pooled:
        """Return vectors `(B, D)`, or `(B, K, D)` if K > 1, and weights `(B, K, N)`.

        With all pairs, `(Q, G, D)` or `(Q, G, K, D)`, and `(Q, G, K, N)`.
        """
        assert context.mask is not None  # the context is a set
        x_BND = zero_pads(x_BND, mask_BN)
        context_BMD = zero_pads(context.x, context.mask)
        if context.all_pairs:
            score_BGKN = self._scores_of_all(x_BND, context_BMD, context.mask)
            weight_BGKN = score_BGKN.masked_fill(~mask_BN[:, None, None], float("-inf")).softmax(dim=-1)
            vectors, weights = torch.einsum("bgkn,bnd->bgkd", weight_BGKN, x_BND), weight_BGKN
        else:
            score_BKN = self.scores(x_BND, context_BMD, context.mask)
            weights = score_BKN.masked_fill(~mask_BN[:, None], float("-inf")).softmax(dim=-1)
            vectors = weights @ x_BND
        return Pooled(vectors.squeeze(-2) if self.num_embeddings == 1 else vectors, weights=weights)

    def _scores_of_all(self, x_QND: Tensor, context_GMD: Tensor, context_mask_GM: Tensor) -> Tensor:
        """Return the scores of every set's elements for every context, `(Q, G, K, N)`.

        One matrix product per head gives the logits of all pairs. Contexts are on the last axis, so that the following
        operations run over long rows, several times faster than over a context's few elements.
        """
        key_GMKHE, value_GMKH = self.keys(context_GMD)
        pads_MG = key_GMKHE.new_zeros(()).where(context_mask_GM.T, float("-inf"))
        query_SPE = self.queries(x_QND).flatten(2, 3).flatten(0, 1).transpose(0, 1)
        key_SEMG = key_GMKHE.flatten(2, 3).permute(2, 3, 1, 0)
        value_SMG = value_GMKH.flatten(2).permute(2, 1, 0)
        score_SPG = []
        for query_PE, key_EMG, value_MG in zip(query_SPE, key_SEMG, value_SMG, strict=True):
            logit_PMG = (query_PE @ key_EMG.flatten(1)).unflatten(1, pads_MG.shape) + pads_MG
            score_SPG.append((logit_PMG.softmax(dim=1) * value_MG).sum(dim=1))
        score_KPG = torch.stack(score_SPG).unflatten(0, (self.num_embeddings, self.heads)).sum(dim=1)
        return score_KPG.unflatten(1, x_QND.shape[:2]).permute(1, 3, 0, 2)
