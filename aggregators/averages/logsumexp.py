"""Log-sum-exp pooling, a smooth maximum (a baseline of Stefanini et al. 2020, section IV-C)."""

from __future__ import annotations

import torch
from torch import Tensor

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.infra.fields import above, require
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("logsumexp")
class LogSumExp(Aggregator):
    """log(mean of exp(s x)) / s per channel, with sharpness s.

    The paper sums instead, which adds log(N) / s to every channel. That constant dominates cosine similarities, so the
    default is the mean, as in Pinheiro and Collobert 2015. The paper also says "along the feature dimension", which
    would give one number per element; here the elements are aggregated, as in its other baselines.

    Args:
        dim: width of the elements.
        sharpness: small values approach the mean, large ones the maximum; 1 in the paper.
        average: False for the paper's sum.
    """

    def __init__(self, dim: int, *, sharpness: float = 1.0, average: bool = True) -> None:
        super().__init__()
        require(above(0), sharpness=sharpness)
        self.sharpness = sharpness
        self.average = average

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the smooth maxima `(B, D)`."""
        wide = torch.promote_types(x_BND.dtype, torch.float32)
        wide_BND = torch.where(mask_BN[..., None], x_BND.to(wide), float("-inf"))
        total_BD = (wide_BND * self.sharpness).logsumexp(dim=1)
        if self.average:
            total_BD = total_BD - mask_BN.sum(dim=1, keepdim=True).to(wide).log()
        return Pooled((total_BD / self.sharpness).to(x_BND.dtype))
