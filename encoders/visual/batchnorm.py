"""Batch normalisation of sets: statistics over real elements only, over all workers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from infra.compute.dist import all_sum


class SetBatchNorm(nn.BatchNorm1d):
    """`nn.BatchNorm1d` over the channels of `(B, N, D)` sets.

    In training the mean and variance are those of the real elements of the whole global batch, so neither
    padding nor the number of workers changes a result. Weights, buffers and running statistics are those
    of the parent class. Counts and moments are formed in float32 at least: in bfloat16, 3,713 elements are 3,712.

    Deviation from VSE-infinity's code, whose `BatchNorm1d` sees `(B * N, D)` rows and so counts the zeros of padded
    regions in mean and variance; its released models therefore give their published numbers only with that padding.
    """

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the normalised sets `(B, N, D)`; values under the mask are finite and otherwise undefined."""
        if not self.training:
            return super().forward(x_BND.flatten(0, 1)).view_as(x_BND)
        mask_BN1, wide = mask_BN[..., None], torch.promote_types(x_BND.dtype, torch.float32)
        wide_BND = x_BND.to(wide).masked_fill(~mask_BN1, 0.0)
        count = mask_BN1.sum(dtype=wide)
        total = all_sum(torch.cat((wide_BND.sum(dim=(0, 1)), count[None])))
        count = total[-1].detach()
        mean_D = total[:-1] / count
        centred_BND = (wide_BND - mean_D).masked_fill(~mask_BN1, 0.0)
        variance_D = all_sum(centred_BND.square().sum(dim=(0, 1))) / count
        self._track(mean_D.detach(), variance_D.detach(), count)
        return (centred_BND * (torch.rsqrt(variance_D + self.eps) * self.weight) + self.bias).to(x_BND.dtype)

    @torch.no_grad()
    def _track(self, mean_D: Tensor, variance_D: Tensor, count: Tensor) -> None:
        unbiased_D = variance_D * count / (count - 1).clamp(min=1)
        self.running_mean.lerp_(mean_D.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_(unbiased_D.to(self.running_var.dtype), self.momentum)
        self.num_batches_tracked += 1
