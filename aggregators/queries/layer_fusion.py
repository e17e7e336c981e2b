"""Attentive layer fusion (Ciernik et al., "Beyond the final layer", ICML 2026): a learned query over all layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.attention import check_heads
from polypool.aggregators.masks import softmax_over_elements, zero_pads
from polypool.infra.compute.batchnorm import SetBatchNorm
from polypool.infra.compute.dropout import Dropout
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("layer_fusion")
class LayerFusion(Aggregator):
    """A learned query attends to layer-normed elements; an output map and a batch norm follow.

    In the paper the elements are [CLS] and the mean patch of each layer of a vision transformer, without positions:
    `extract --backbone 'dinov2(cls=True, grid=1, layers=12, stack=True)'`.

    Keys and values have separate layer norms. As in the authors' code, heads are twice as wide as usual, only the
    output map has a bias, dropout applies to the attention weights, and the batch norm is affine; their linear
    classifier belongs to the task here. With `expansion=1` it is the attentive probe of CAE (Chen et al. 2022), except
    that CAE's batch norm is not affine. The norm of keys has no bias, because the softmax would cancel it. In training
    the batch norm uses the sets of the global batch.

    Args:
        dim: width of the elements; `heads` must divide it.
        heads: attention heads; in the paper as many as elements.
        expansion: total width of the heads, as a multiple of `dim`.
        dropout: dropout rate of the attention weights; the authors choose from 0, 0.1 and 0.3.
    """

    def __init__(self, dim: int, *, heads: int = 8, expansion: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        check_heads(dim, heads)
        check_counts(expansion=expansion)
        self.heads = heads
        self.query_D = nn.Parameter(0.02 * torch.randn(dim))
        self.norm_query, self.norm_value = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.norm_key = nn.LayerNorm(dim, bias=False)
        self.query, self.key, self.value = (nn.Linear(dim, expansion * dim, bias=False) for _ in range(3))
        self.dropout = Dropout(dropout)
        self.out = nn.Linear(expansion * dim, dim)
        self.norm = SetBatchNorm(dim)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return vectors `(B, D)` and weights `(B, N)`, averaged over heads.

        The query passes through the transposed key map, and means of the elements through the value map. By
        associativity the result is the same, and no element is mapped.
        """
        x_BND = zero_pads(x_BND, mask_BN)
        query_HE = self.query(self.norm_query(self.query_D)).unflatten(0, (self.heads, -1))
        key_HED, value_HED = (part.weight.unflatten(0, (self.heads, -1)) for part in (self.key, self.value))
        query_HD = torch.einsum("he,hed->hd", query_HE * query_HE.shape[-1] ** -0.5, key_HED)
        weight_BHN = softmax_over_elements(query_HD @ self.norm_key(x_BND).mT, mask_BN[:, None])
        mean_BHD = self.dropout(weight_BHN) @ self.norm_value(x_BND)
        got_BHE = torch.einsum("bhd,hed->bhe", mean_BHD, value_HED)
        return Pooled(self.norm(self.out(got_BHE.flatten(1))), weights=weight_BHN.mean(dim=1))
