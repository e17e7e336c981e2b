"""Generalised-mean pooling, GeM (Radenovic, Tolias and Chum 2019, equation 3)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.infra.fields import above, require
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("gem")
class GeM(Aggregator):
    """(mean of x^p)^(1/p) per channel with one learned p: 1 is the mean, a large p approaches the maximum.

    The method assumes non-negative features. As in the authors' code, values below `eps` are clamped to `eps` and get
    no gradient, so only positive values contribute. VSE-infinity (section 5.3) reports divergence on signed features:
    x^p underflows for a channel without positive values, and the slope of the root is then unbounded. Here each channel
    is divided by its maximum first, which does not change the result and keeps the mean in [1/N, 1]; and log p is
    learned, which keeps p positive.

    Args:
        dim: width of the elements.
        p: initial exponent.
        eps: lower bound of the values.
    """

    def __init__(self, dim: int, *, p: float = 3.0, eps: float = 1e-6) -> None:
        super().__init__()
        require(above(0), p=p, eps=eps)
        self.log_p = nn.Parameter(torch.tensor(math.log(p)))
        self.eps = eps

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the `(B, D)` generalised means."""
        p = self.log_p.exp()
        x_BND = x_BND.clamp(min=self.eps).masked_fill(~mask_BN[..., None], 0.0)
        largest_B1D = x_BND.detach().amax(dim=1, keepdim=True)
        mean_BD = (x_BND / largest_B1D).pow(p).sum(dim=1) / mask_BN.sum(dim=1, keepdim=True)
        return Pooled(largest_B1D.squeeze(1) * mean_BD.pow(1 / p))
