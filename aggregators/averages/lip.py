"""Local importance pooling, LIP (Gao, Wang and Wu 2019, arXiv 1908.04156, and its code)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.averages.weighted import WeightedSum
from polypool.aggregators.masks import masked_softmax
from polypool.infra.fields import above, require
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("lip")
class LIP(WeightedSum):
    """A mean with per-channel softmax weights of a bounded learned score.

    The score is the paper's projection form: a linear map, normalised over the set per channel, and a sigmoid that
    bounds it to (0, gate). Elements have no neighbours, so the map sees one element and the window is the whole set.
    The map is initialised at zero, so the pooling starts as a mean.

    Args:
        dim: width of the elements.
        gate: upper bound of the score; 12 in the authors' code.
    """

    def __init__(self, dim: int, *, gate: float = 12.0) -> None:
        super().__init__()
        require(above(0), gate=gate)
        self.gate = gate
        self.project = nn.Linear(dim, dim, bias=False)
        nn.init.zeros_(self.project.weight)
        self.scale_D = nn.Parameter(torch.ones(dim))
        self.shift_D = nn.Parameter(torch.zeros(dim))

    def weigh(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the weights `(B, N, D)`, a softmax over the elements per channel."""
        centred_BND, variance_BD = moments(self.project(x_BND), mask_BN)
        scale_BD = (variance_BD + 1e-5).rsqrt() * self.scale_D
        score_BND = self.gate * torch.addcmul(self.shift_D, centred_BND, scale_BD[:, None]).sigmoid()
        dtype = torch.promote_types(x_BND.dtype, self.scale_D.dtype)
        return masked_softmax(score_BND, mask_BN).to(dtype)


def moments(x_BND: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
    """Return the centred elements `(B, N, D)`, 0 in the padding, and the variance `(B, D)`.

    `x_BND` must be zero in the padding. Computed in float32 at least.
    """
    wide_BND = x_BND.to(torch.promote_types(x_BND.dtype, torch.float32))
    real_BN1 = mask_BN[..., None].to(wide_BND.dtype)
    size_B1 = real_BN1.sum(dim=1)
    centred_BND = (wide_BND - (wide_BND.sum(dim=1) / size_B1)[:, None]) * real_BN1
    return centred_BND, centred_BND.square().sum(dim=1) / size_B1
