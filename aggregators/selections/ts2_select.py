"""Token selection of TS2-Net (Liu et al., ECCV 2022): differentiable top-k by a learned score."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.masks import masked_mean, zero_pads
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("ts2_select")
class TS2Select(Aggregator):
    """The mean of the k highest-scored elements, made differentiable by Gaussian noise on the scores.

    The score is the tanh of an MLP of an element's inner features and global ones, concatenated: the CLS token's in the
    authors' code, the mean over the elements here. The code draws Gaussian noise of standard deviation `sigma` 500
    times, in evaluation, too, and averages the top-k indicators (perturbed top-k). Here the expectation is computed
    instead: the probability that an element's noisy score exceeds a threshold, which is chosen so that k elements
    exceed it on average. Both agree in the limit of large sets, and the result is deterministic. The paper passes the
    selected tokens of all frames through a transformer (`sequential`) and compares their mean.

    Args:
        dim: width of the elements, at least 2.
        k: number of selected elements; all in smaller sets.
        sigma: standard deviation of the noise.
    """

    def __init__(self, dim: int, *, k: int = 4, sigma: float = 0.05) -> None:
        super().__init__()
        check_counts(k=k)
        if not sigma > 0 or dim < 2:
            raise InputError(
                f"sigma must be above 0 and elements must have 2 channels, not {sigma} and {dim}"
            )
        self.k, self.sigma, half = k, sigma, dim // 2
        self.inner = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, half, bias=False), nn.GELU())
        self.score = nn.Sequential(
            nn.Linear(2 * half, half, bias=False), nn.GELU(), nn.Linear(half, 1, bias=False), nn.Tanh()
        )

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return means `(B, D)` and weights `(B, N)`: each element's selection probability, normalised."""
        x_BND = zero_pads(x_BND, mask_BN)
        inner_BNH = self.inner(x_BND)
        whole_BNH = masked_mean(inner_BNH, mask_BN)[:, None].expand_as(inner_BNH)
        score_BN = self.score(torch.cat((inner_BNH, whole_BNH), dim=-1)).squeeze(2)
        chance_BN = chosen(score_BN, mask_BN, k=self.k, sigma=self.sigma)
        weight_BN = (chance_BN / chance_BN.sum(dim=1, keepdim=True)).to(x_BND.dtype)
        return Pooled(torch.einsum("bn,bnd->bd", weight_BN, x_BND), weights=weight_BN)


def chosen(score_BN: Tensor, mask_BN: Tensor, *, k: int, sigma: float) -> Tensor:
    """Return selection probabilities `(B, N)`: that a noisy score exceeds a threshold which k exceed on average.

    Scores in [-1, 1] have Gaussian noise of standard deviation `sigma`. The threshold is found by bisection without
    gradient; a zero-valued term adds its gradient, the gradient of one Newton step. Computed in float32 at least; 1 in
    sets of at most k elements, 0 in the padding.
    """
    score_BN = score_BN.to(torch.promote_types(score_BN.dtype, torch.float32)) / sigma
    real_BN = mask_BN.to(score_BN.dtype)

    def above(threshold_B1: Tensor) -> Tensor:
        return torch.special.ndtr(score_BN - threshold_B1) * real_BN

    with torch.no_grad():
        low_B1 = torch.full_like(score_BN[:, :1], -1 / sigma - 9)
        high_B1 = -low_B1
        for _ in range(40):
            middle_B1 = (low_B1 + high_B1) / 2
            more_B1 = above(middle_B1).sum(dim=1, keepdim=True) > k
            low_B1, high_B1 = middle_B1.where(more_B1, low_B1), high_B1.where(more_B1, middle_B1)
        threshold_B1 = (low_B1 + high_B1) / 2
        density_BN = real_BN * (-0.5 * (score_BN - threshold_B1) ** 2).exp() / math.sqrt(2 * math.pi)
        slope_B1 = density_BN.sum(dim=1, keepdim=True).clamp(min=1e-20)
    count_above_B1 = above(threshold_B1).sum(dim=1, keepdim=True)
    return above(threshold_B1 + (count_above_B1 - count_above_B1.detach()) / slope_B1)
