"""AdaPool of reinforcement learning (Brothers, ICML 2025, and its code), unrelated to Stergiou's `adapool`."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.aggregators.attention import attend, check_heads
from polypool.aggregators.averages.cls import CLS
from polypool.aggregators.averages.mean import Mean
from polypool.aggregators.masks import zero_pads
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("self_query")
class SelfQuery(Aggregator):
    """Multi-head attention with one query from the set: the mean of its elements, or its first element.

    As in the authors' code, no map has a bias, and scores are divided by the root of the full width. The output has a
    residual connection from a first-element query, and none from a mean.

    Args:
        dim: width of the elements; `heads` must divide it.
        query: `mean`, or `cls` for the first element.
        heads: attention heads.
    """

    def __init__(self, dim: int, *, query: Literal["mean", "cls"] = "mean", heads: int = 8) -> None:
        super().__init__()
        check_heads(dim, heads)
        kinds = {"mean": Mean, "cls": CLS}
        if query not in kinds:
            raise InputError(f"query must be mean or cls, not {query!r}")
        self.own = kinds[query](dim)
        self.symmetric = self.own.symmetric
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return vectors `(B, D)` and weights `(B, N)`, averaged over heads."""
        x_BND = zero_pads(x_BND, mask_BN)
        own_BD = self.own(x_BND, mask_BN).vectors
        got_B1D, weight_B1HN = attend(
            self.query(own_BD)[:, None],
            x_BND,
            mask_BN,
            key=self.key,
            value=self.value,
            heads=self.heads,
            scale=x_BND.shape[-1] ** -0.5,
        )
        vector_BD = self.out(got_B1D.squeeze(1))
        vector_BD = vector_BD if self.symmetric else own_BD + vector_BD
        return Pooled(vector_BD, weights=weight_B1HN.squeeze(1).mean(dim=1))
