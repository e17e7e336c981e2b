"""X-Pool (Gorti et al., CVPR 2022): cross-attention from a text to a video's frames."""

from __future__ import annotations

from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Context, Pooled
from polypool.aggregators.attention import attend, check_heads, init_linear
from polypool.aggregators.masks import zero_pads
from polypool.infra.compute.dropout import Dropout
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("xpool")
class XPool(Aggregator):
    """The text's vector attends to the elements; the output passes a residual linear map between layer norms.

    Text and elements share the first norm. All maps start as the identity with zero bias, so that a text initially
    weights elements by similarity. Keys have no bias, because the softmax would cancel it.

    Args:
        dim: width of the elements and of the text's vector; `heads` must divide it.
        heads: attention heads; 1 in the authors' code.
        dropout: dropout rate after the last map.
    """

    context = "vector"

    def __init__(self, dim: int, *, heads: int = 1, dropout: float = 0.3) -> None:
        super().__init__()
        check_heads(dim, heads)
        self.heads = heads
        self.norm, self.norm_got, self.norm_out = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.query, self.value = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim, bias=False)
        self.out, self.linear = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.dropout = Dropout(dropout)
        init_linear(self, weight=nn.init.eye_)

    def forward(self, x_BND: Tensor, mask_BN: Tensor, *, context: Context) -> Pooled:
        """Return vectors `(B, D)` and weights `(B, N)`, averaged over heads.

        With all pairs, `(Q, G, D)` and `(Q, G, N)`: G texts are G queries to every set, and elements are projected
        once.
        """
        query_BD = self.query(self.norm(context.x))
        query_BKD = query_BD[None] if context.all_pairs else query_BD[:, None]
        normal_BND = self.norm(zero_pads(x_BND, mask_BN))
        got_BKD, weight_BKHN = attend(
            query_BKD, normal_BND, mask_BN, key=self.key, value=self.value, heads=self.heads
        )
        got_BKD = self.norm_got(self.out(got_BKD))
        vectors = self.norm_out(got_BKD + self.dropout(self.linear(got_BKD)))
        weights = weight_BKHN.mean(dim=2)
        if context.all_pairs:
            return Pooled(vectors, weights=weights)
        return Pooled(vectors.squeeze(1), weights=weights.squeeze(1))
