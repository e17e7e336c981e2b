"""Gated attention of multiple instance learning (Ilse et al., ICML 2018), as ABMILP uses it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.masks import masked_softmax, zero_pads
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("abmilp")
class ABMILP(Aggregator):
    """A softmax-weighted mean with scores w (tanh(Vx) * sigmoid(Ux)), Ilse et al., Eq. 9.

    `gated=False` omits the sigmoid (their Eq. 8): ABMILP, the head that "Beyond [cls]" (Przewiezlikowski et al., ICCV
    2025) puts on masked autoencoders, whose inner layer has the width of the elements, as here. V and U have a bias, as
    in both codes; w has none, because the softmax would cancel it. The attention of CLAM (Lu et al. 2021) is the gated
    form; its clustering losses are not part of the pooling.

    Args:
        dim: width of the elements.
        hidden: width of the inner layer; `dim` if None; Ilse et al. use 128 for 500 channels.
        gated: whether to use the sigmoid gate.
    """

    def __init__(self, dim: int, *, hidden: int | None = None, gated: bool = True) -> None:
        super().__init__()
        hidden = dim if hidden is None else hidden
        check_counts(hidden=hidden)
        self.content = nn.Linear(dim, hidden)
        self.gate = nn.Linear(dim, hidden) if gated else None
        self.score = nn.Linear(hidden, 1, bias=False)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the weighted means `(B, D)` and softmax weights `(B, N)`."""
        x_BND = zero_pads(x_BND, mask_BN)
        inner_BNH = self.content(x_BND).tanh()
        if self.gate is not None:
            inner_BNH = inner_BNH * self.gate(x_BND).sigmoid()
        weight_BN = masked_softmax(self.score(inner_BNH), mask_BN).squeeze(2)
        return Pooled(torch.einsum("bn,bnd->bd", weight_BN, x_BND), weights=weight_BN)
