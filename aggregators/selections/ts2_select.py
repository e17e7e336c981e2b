"""Token selection of TS2-Net (Liu et al., ECCV 2022): the k best of a set by a learned score, differentiably."""

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
    """The mean of the k elements with the best scores, where scores have noise, so that near misses count in part.

    The score is the tanh of an MLP of an element's inner features beside those of the whole, as in the authors' code,
    where the CLS token represents the whole; here the mean of the elements does. They draw 500 times Gaussian noise of
    deviation `sigma` for the scores, at evaluation too, and average which k are best (perturbed top-k). Here nothing is
    drawn: an element is chosen with the chance that its noisy score is above a threshold, and the threshold is that
    which makes k of them chosen on average. Drawn noise has the same limit in large sets, and a set gives the same
    whenever it is asked. The paper lays the chosen tokens of all frames before a transformer (`sequential`), and their
    mean is what is compared in the end.

    Args:
        dim: width of the elements, at least 2.
        k: how many are chosen; of smaller sets all.
        sigma: deviation of the noise.
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
        """Return the `(B, D)` means and the weights `(B, N)`: each element's chance of being chosen, over their sum."""
        x_BND = zero_pads(x_BND, mask_BN)
        inner_BNH = self.inner(x_BND)
        whole_BNH = masked_mean(inner_BNH, mask_BN)[:, None].expand_as(inner_BNH)
        score_BN = self.score(torch.cat((inner_BNH, whole_BNH), dim=-1)).squeeze(2)
        chance_BN = chosen(score_BN, mask_BN, k=self.k, sigma=self.sigma)
        weight_BN = (chance_BN / chance_BN.sum(dim=1, keepdim=True)).to(x_BND.dtype)
        return Pooled(torch.einsum("bn,bnd->bd", weight_BN, x_BND), weights=weight_BN)


def chosen(score_BN: Tensor, mask_BN: Tensor, *, k: int, sigma: float) -> Tensor:
    """Return the chance `(B, N)` of every real element to be above a threshold that k are above on average.

    Scores, between -1 and 1, have Gaussian noise of deviation `sigma`. The threshold is found by bisection, which no
    gradient sees; a term of value 0 gives it its gradient, that of a step of Newton's method. In float32 at least; 1 in
    sets of k elements or fewer, 0 in the pads.
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
