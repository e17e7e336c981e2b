"""Pooling by sliced-Wasserstein embedding, PSWE (Naderializadeh et al., NeurIPS 2021, and its code)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.masks import zero_pads
from polypool.aggregators.ranks.by_size import weights_by_size
from polypool.aggregators.ranks.sorted_sum import sorted_sum
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("pswe")
class PSWE(Aggregator):
    """A learned weighted sum of the differences between the set's and a learned reference's quantiles in each slice.

    A slice is a learned direction, initially one channel each. The set's sorted values, at quantiles n / (N + 1), are
    interpolated linearly at m / (M + 1), and extrapolated at both ends if the set is smaller than the reference; each
    is compared with the reference point of its rank. This is a weighted sum over the set's ranks. Deviations: a set of
    one element, which the authors' code cannot embed, has a constant quantile function; where reference points are out
    of order in a slice, the code uses the sorting permutation instead of its inverse (the ranks), and here it is the
    ranks.

    Args:
        dim: width of the elements.
        points: number of reference points M; the set size in the authors' code.
    """

    weights_over = "ranks"

    def __init__(self, dim: int, *, points: int = 32) -> None:
        super().__init__()
        check_counts(points=points)
        self.slice = nn.Linear(dim, dim, bias=False)
        nn.init.eye_(self.slice.weight)
        self.reference_MD = nn.Parameter(torch.linspace(-1, 1, points)[:, None].repeat(1, dim))
        self.weight_MD = nn.Parameter(nn.init.xavier_uniform_(torch.empty(points, dim)))

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the weighted sums `(B, D)` and the weights over ranks in each slice `(B, N, D)`."""
        wide = torch.promote_types(x_BND.dtype, torch.float32)
        weight_BND = weights_by_size(self._weights, mask_BN)
        direction_DD = nn.functional.normalize(self.slice.weight.to(wide), dim=1)
        slice_BND = zero_pads(x_BND, mask_BN).to(wide) @ direction_DD.T
        still_D = (self.weight_MD.to(wide) * self.reference_MD.to(wide)).sum(dim=0)
        return Pooled(
            (still_D + sorted_sum(slice_BND, weight_BND, mask_BN)).to(x_BND.dtype), weights=weight_BND
        )

    def _weights(self, size_S: Tensor, longest: int) -> Tensor:
        """Return the weights over ranks, in descending order of values, in each slice: `(S, longest, D)`."""
        order_MD = self.reference_MD.argsort(dim=0, descending=True)
        weight_MD = self.weight_MD.gather(0, order_MD)
        points, wide = len(weight_MD), torch.promote_types(weight_MD.dtype, torch.float32)
        share_M = torch.arange(1, points + 1, dtype=wide, device=size_S.device) / (points + 1)
        last_S1 = size_S[:, None] - 1
        place_SM = share_M * (last_S1 + 2) - 1
        low_SM = place_SM.floor().long().clamp(min=0).minimum((last_S1 - 1).clamp(min=0))
        part_SM = (place_SM - low_SM) * (last_S1 > 0)
        rank_N1 = torch.arange(longest, device=size_S.device)[:, None]
        share_SNM = (rank_N1 == low_SM[:, None]) * (1 - part_SM[:, None])
        share_SNM = share_SNM + (rank_N1 == low_SM[:, None] + 1) * part_SM[:, None]
        return -(share_SNM @ weight_MD.to(wide))
