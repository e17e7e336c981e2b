"""Efficient probing, EP (Psomas et al., "Attention, please! Revisiting attentive probing", ICLR 2026)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.masks import softmax_over_elements, zero_pads
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("ep")
class EfficientProbing(Aggregator):
    """Learned queries attend to the elements directly; each pools a separate slice of the value channels.

    A query's weights are a softmax over the elements of its dot products with them, divided by sqrt(D). The method has
    no query, key or output map; values are a linear map without bias, split among the queries. The slices are
    concatenated to one vector. As in the authors' code, except for its option of narrower values, which is omitted.

    Args:
        dim: width of the elements; `queries` must divide it.
        queries: number of queries M.
    """

    def __init__(self, dim: int, *, queries: int = 8) -> None:
        super().__init__()
        check_counts(queries=queries)
        if dim % queries:
            raise InputError(f"queries must divide the width of the elements, {dim}, and {queries} does not")
        self.query_MD = nn.Parameter(0.02 * torch.randn(queries, dim))
        self.value = nn.Linear(dim, dim, bias=False)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return vectors `(B, D)` and weights `(B, N)`, averaged over the queries.

        Each query's mean of the elements passes through its slice of the value map: equal to the mean of the values, at
        the cost of mapping one element per set.
        """
        x_BND = zero_pads(x_BND, mask_BN)
        logit_BMN = self.query_MD * x_BND.shape[-1] ** -0.5 @ x_BND.transpose(1, 2)
        weight_BMN = softmax_over_elements(logit_BMN, mask_BN[:, None])
        value_MPD = self.value.weight.unflatten(0, (len(self.query_MD), -1))
        part_BMP = torch.einsum("bmd,mpd->bmp", weight_BMN @ x_BND, value_MPD)
        return Pooled(part_BMP.flatten(1), weights=weight_BMN.mean(dim=1))
