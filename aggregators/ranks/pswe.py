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
    """How far the set's quantiles are from those of a learned reference in each slice, in a learned weighted sum.

    A slice is a learned direction, at first each channel. The set's sorted values in it, at n / (N + 1), are
    interpolated linearly at m / (M + 1), and extrapolated beyond both ends where the set is smaller than the reference;
    each goes to the reference point of its rank. That is a sum over the set's ranks. Deviations: a set of one, of which
    the code makes nothing, has its value everywhere; where the reference's points are out of order in a slice, the code
    takes the permutation that sorts them for its inverse, the points' ranks, and here it is the ranks.

    Args:
        dim: width of the elements.
        points: M, of the reference; the code has as many as a set has elements.
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
        """Return the `(B, D)` weighted sums and the `(B, N, D)` weights over ranks in each slice."""
        wide = torch.promote_types(x_BND.dtype, torch.float32)
        weight_BND = weights_by_size(self._weights, mask_BN)
        direction_DD = nn.functional.normalize(self.slice.weight.to(wide), dim=1)
        slice_BND = zero_pads(x_BND, mask_BN).to(wide) @ direction_DD.T
        still_D = (self.weight_MD.to(wide) * self.reference_MD.to(wide)).sum(dim=0)
        return Pooled(
            (still_D + sorted_sum(slice_BND, weight_BND, mask_BN)).to(x_BND.dtype), weights=weight_BND
        )

    def _weights(self, size_S: Tensor, longest: int) -> Tensor:
        """Return what each rank weighs, the largest value's first: how much of it each reference point gets."""
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
