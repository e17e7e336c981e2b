"""Fourier sliced-Wasserstein embedding, FSW (Amir and Dym, ICLR 2025, section 3, and its code)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.aggregators.masks import zero_pads
from polypool.aggregators.ranks.by_size import weights_by_size
from polypool.aggregators.ranks.sorted_sum import sorted_sum
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("fsw")
class FSW(Aggregator):
    """Samples of the cosine transform of a set's quantile function; each channel has one slice and one frequency.

    A slice is a linear map to one number. A channel is 2 (1 + f) times the integral over t in [0, 1] of the set's
    quantile function in the slice times cos(2 pi f t). The quantile function has N steps, so the integral is a weighted
    sum over ranks. Elements have equal weights, and the set's size is not encoded.

    Slices start at random directions and are learned, which the code offers as an option; its optional bias is omitted.
    Frequencies are the code's `even` ones, (c - 1/2) / (D - c + 1/2) for channel c of D, the quantiles of its random
    distribution.

    Args:
        dim: width of the elements.
    """

    weights_over = "ranks"

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.slice = nn.Linear(dim, dim, bias=False)
        with torch.no_grad():
            self.slice.weight.copy_(nn.functional.normalize(torch.randn(dim, dim), dim=1))

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the samples `(B, D)` and the weights over ranks in each slice `(B, N, D)`."""
        wide = torch.promote_types(x_BND.dtype, torch.float32)
        weight_BND = weights_by_size(self._weights, mask_BN)
        slice_BND = zero_pads(x_BND, mask_BN).to(wide) @ self.slice.weight.T.to(wide)
        return Pooled(sorted_sum(slice_BND, weight_BND, mask_BN).to(x_BND.dtype), weights=weight_BND)

    def _weights(self, size_S: Tensor, longest: int) -> Tensor:
        """Return 2 (1 + f) times the integral of the cosine over each rank's step, in descending order of values."""
        dim = self.slice.weight.shape[0]
        wide = torch.promote_types(self.slice.weight.dtype, torch.float32)
        place_D = torch.arange(dim, dtype=wide, device=size_S.device) + 0.5
        frequency_D = place_D / (dim - place_D)
        rank_N1 = torch.arange(longest, device=size_S.device)[:, None]
        size_S11 = size_S.to(wide)[:, None, None]
        middle_SN1 = (size_S11 - rank_N1 - 0.5) / size_S11
        half_S1D = math.pi * frequency_D / size_S11
        height_S1D = 2 * (1 + frequency_D) * half_S1D.sin() / (math.pi * frequency_D)
        return height_S1D * (2 * math.pi * frequency_D * middle_SN1).cos()
