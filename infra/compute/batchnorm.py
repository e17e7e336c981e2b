"""Batch normalisation of sets, with statistics over the real elements of all workers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.infra.compute.dist import all_sum


class SetBatchNorm(nn.BatchNorm1d):
    """`nn.BatchNorm1d` over the channels of the elements of sets, concatenated to `(R, D)`.

    In training, mean and variance are over the real elements of the global batch, so neither padding nor the number of
    workers changes a result. Counts and moments are computed in float32 at least: in bfloat16, 3,713 elements round to
    3,712.

    Deviation from VSE-infinity's code, whose `BatchNorm1d` includes the zeros of padded regions; its released models
    therefore reach their published numbers only with that padding.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    momentum: float

    def forward(self, x_RD: Tensor, real: Tensor | int | None = None) -> Tensor:
        """Return the normalised elements `(R, D)`.

        Args:
            x_RD: the elements.
            real: the real elements: a mask `(R,)`, or the number of leading ones; None for all. Other rows are finite
                and undefined.
        """
        if not self.training:
            return super().forward(x_RD)
        mask_R, first = (real, None) if isinstance(real, Tensor) else (None, real)
        wide_RD = _masked(x_RD.to(torch.promote_types(x_RD.dtype, torch.float32)), mask_R)
        rows = wide_RD[:first]
        count_1 = wide_RD.new_full((1,), len(rows)) if mask_R is None else mask_R.sum()[None].to(wide_RD)
        total = all_sum(torch.cat((rows.sum(dim=0), count_1)))
        count = total[-1].detach()
        mean_D = total[:-1] / count
        centred_RD = _masked(wide_RD - mean_D, mask_R)
        variance_D = all_sum(centred_RD[:first].square().sum(dim=0)) / count
        self._track(mean_D.detach(), variance_D.detach(), count)
        scale_D = torch.rsqrt(variance_D + self.eps)
        if not self.affine:
            return (centred_RD * scale_D).to(x_RD.dtype)
        return torch.addcmul(self.bias, centred_RD, scale_D * self.weight).to(x_RD.dtype)

    @torch.no_grad()
    def _track(self, mean_D: Tensor, variance_D: Tensor, count: Tensor) -> None:
        unbiased_D = variance_D * count / (count - 1).clamp(min=1)
        self.running_mean.lerp_(mean_D.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_(unbiased_D.to(self.running_var.dtype), self.momentum)
        self.num_batches_tracked += 1


def _masked(x_RD: Tensor, mask_R: Tensor | None) -> Tensor:
    return x_RD if mask_R is None else x_RD.masked_fill(~mask_R[:, None], 0.0)
