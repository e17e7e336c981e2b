"""Attention-challenging multiple instance learning, ACMIL (Zhang et al., ECCV 2024, and its code)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.masks import softmax_over_elements, zero_pads
from polypool.infra.compute.dropout import Dropout
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("acmil")
class ACMIL(Aggregator):
    """The mean of k gated attention branches; in training, each loses some of its highest-scored elements.

    Branches share the inner layer of `abmilp`. In training, each of a branch's `top` highest-scored elements is masked
    with probability `drop`, and the others share its weight (stochastic top-K instance masking). The authors' code
    always masks the same number, `drop` x `top`. If a branch would lose all elements, none is masked. The branches'
    classifiers and the diversity loss are not part of the pooling. Scores have no bias, because the softmax would
    cancel it.

    Args:
        dim: width of the elements.
        k: number of branches.
        hidden: width of the inner layer.
        top: number of highest-scored elements per branch that may be masked.
        drop: masking probability of each, from 0 to 1.
    """

    def __init__(self, dim: int, *, k: int = 5, hidden: int = 128, top: int = 10, drop: float = 0.6) -> None:
        super().__init__()
        check_counts(k=k, hidden=hidden, top=top)
        if not 0 <= drop <= 1:
            raise InputError(f"drop must be a probability from 0 to 1, not {drop}")
        self.content, self.gate = nn.Linear(dim, hidden), nn.Linear(dim, hidden)
        self.score = nn.Linear(hidden, k, bias=False)
        self.top, self.drop = top, Dropout(drop)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the means `(B, D)` and weights `(B, N)`, averaged over branches."""
        x_BND = zero_pads(x_BND, mask_BN)
        score_BNK = self.score(self.content(x_BND).tanh() * self.gate(x_BND).sigmoid())
        score_BKN, real_BKN = score_BNK.transpose(1, 2), mask_BN[:, None]
        if self.training:
            real_BKN = self._challenged(score_BKN, real_BKN)
        weight_BN = softmax_over_elements(score_BKN, real_BKN).mean(dim=1)
        return Pooled(torch.einsum("bn,bnd->bd", weight_BN, x_BND), weights=weight_BN)

    def _challenged(self, score_BKN: Tensor, real_B1N: Tensor) -> Tensor:
        """Return the elements that each branch keeps, `(B, K, N)` bool, at least one."""
        order_BKN = score_BKN.masked_fill(~real_B1N, float("-inf")).argsort(dim=2, descending=True)
        is_top_BKN = order_BKN.argsort(dim=2) < self.top
        left_BKN = real_B1N & ~(is_top_BKN & (self.drop(torch.ones_like(score_BKN)) == 0))
        return left_BKN | (real_B1N & ~left_BKN.any(dim=2, keepdim=True))
