"""Local importance pooling, LIP (Gao, Wang and Wu 2019, arXiv 1908.04156, and its code)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.averages.weighted import WeightedSum, masked_mean, masked_softmax, zero_pads
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("lip")
class LIP(WeightedSum):
    """A mean in which every value weighs by the exponential of a learned score.

    The score is the paper's projection form: a linear map, normalised over the set in each channel, and a sigmoid that
    bounds it to (0, gate). Elements have no neighbours, so the map sees one element, and the window is the whole set.
    The map starts at zero, so the pooling starts as a mean.

    Args:
        dim: width of the elements.
        gate: the largest score; 12 in the authors' code.
    """

    def __init__(self, dim: int, *, gate: float = 12.0) -> None:
        super().__init__()
        if gate <= 0:
            raise ValueError(f"gate must be above 0, not {gate}")
        self.gate = gate
        self.project = nn.Linear(dim, dim, bias=False)
        nn.init.zeros_(self.project.weight)
        self.scale_D = nn.Parameter(torch.ones(dim))
        self.shift_D = nn.Parameter(torch.zeros(dim))

    def weigh(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the `(B, N, D)` weights: each channel's softmax of the scores."""
        score_BND = normalise_over_set(self.project(x_BND), mask_BN)
        score_BND = self.gate * (score_BND * self.scale_D + self.shift_D).sigmoid()
        return masked_softmax(score_BND, mask_BN)


def normalise_over_set(x_BND: Tensor, mask_BN: Tensor, *, eps: float = 1e-5) -> Tensor:
    """Return `(B, N, D)`: each channel of each set with mean 0 and variance 1 over its real elements, 0 in the pads."""
    wide_BND = x_BND.to(torch.promote_types(x_BND.dtype, torch.float32))
    centred_BND = zero_pads(wide_BND - masked_mean(wide_BND, mask_BN)[:, None], mask_BN)
    variance_BD = masked_mean(centred_BND.square(), mask_BN)
    return (centred_BND * (variance_BD[:, None] + eps).rsqrt()).to(x_BND.dtype)
