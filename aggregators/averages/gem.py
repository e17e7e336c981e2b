"""Generalised-mean pooling, GeM (Radenovic, Tolias and Chum 2019, equation 3)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("gem")
class GeM(Aggregator):
    """(mean of x^p)^(1/p) of each channel, with one learned p: 1 is the mean, a large p the maximum.

    The method is made for features that are never negative. As in the authors' code, values below `eps` count as `eps`
    and get no gradient, so of signed features only the positive ones speak. VSE-infinity (section 5.3) saw training
    diverge on those: x^p underflows where a channel is nowhere positive, and the root's slope is then without bound.
    Here each channel is divided by its largest value first, which changes no result and keeps the mean in [1/N, 1], and
    p is learned through its logarithm, which keeps it above 0.

    Args:
        dim: width of the elements.
        p: the exponent to start from.
        eps: the smallest value that counts.
    """

    def __init__(self, dim: int, *, p: float = 3.0, eps: float = 1e-6) -> None:
        super().__init__()
        if p <= 0 or eps <= 0:
            raise ValueError(f"p and eps must be above 0, not {p} and {eps}")
        self.log_p = nn.Parameter(torch.tensor(math.log(p)))
        self.eps = eps

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the `(B, D)` generalised means."""
        p = self.log_p.exp()
        x_BND = x_BND.clamp(min=self.eps).masked_fill(~mask_BN[..., None], 0.0)
        largest_B1D = x_BND.detach().amax(dim=1, keepdim=True)
        mean_BD = (x_BND / largest_B1D).pow(p).sum(dim=1) / mask_BN.sum(dim=1, keepdim=True)
        return Pooled(largest_B1D.squeeze(1) * mean_BD.pow(1 / p))
