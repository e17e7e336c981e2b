"""NeXtVLAD (Lin, Xiao and Fan, ECCV workshops 2018): NetVLAD of groups of channels, which gates weigh."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.assignments.assigning import unit_length
from polypool.aggregators.masks import zero_pads
from polypool.infra.compute.batchnorm import SetBatchNorm
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("nextvlad")
class NeXtVLAD(Aggregator):
    """Elements are widened and split in groups; each group of channels is an element of its own to a smaller NetVLAD.

    A group's assignment to the clusters, a softmax of batch-normed scores, is multiplied by a sigmoid of the whole
    element. Sums of differences from the clusters' centres are normalised cluster by cluster, laid one behind the
    other, batch-normed, and mapped to the vector. Both batch norms know real elements and sets of the global batch
    alone in training, and kept statistics elsewhere, which move a tenth of the way to those of each batch, in the
    authors' code a thousandth. Maps start from He's normal weights. The dropout before the last map and the context
    gating behind it belong to the authors' classifier and are left out.

    Args:
        dim: width of the elements.
        clusters: how many, 64 in the authors' code.
        groups: of channels; they divide `expansion` x `dim`.
        expansion: how many times wider elements become.
    """

    def __init__(self, dim: int, *, clusters: int = 64, groups: int = 8, expansion: int = 2) -> None:
        super().__init__()
        check_counts(clusters=clusters, groups=groups, expansion=expansion)
        wide = expansion * dim
        if wide % groups:
            raise InputError(
                f"groups must divide expansion x width, {expansion} x {dim}, and {groups} does not"
            )
        self.groups, part = groups, wide // groups
        self.expand, self.gate = nn.Linear(dim, wide), nn.Linear(wide, groups)
        self.assign = nn.Linear(wide, groups * clusters, bias=False)
        self.assign_norm = SetBatchNorm(groups * clusters, eps=1e-3)
        self.centre_KP = nn.Parameter(torch.randn(clusters, part) * (2 / part) ** 0.5)
        self.norm = SetBatchNorm(clusters * part, eps=1e-3)
        self.out = nn.Linear(clusters * part, dim)
        for linear in (self.expand, self.gate, self.assign, self.out):
            nn.init.kaiming_normal_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the `(B, D)` vectors and the gates `(B, N)`, between 0 and 1, the mean over groups."""
        wide_BNE = self.expand(zero_pads(x_BND, mask_BN))
        gate_BNG = zero_pads(self.gate(wide_BNE).sigmoid(), mask_BN)
        score_RS = self.assign_norm(self.assign(wide_BNE).flatten(0, 1), mask_BN.flatten())
        dtype = torch.promote_types(x_BND.dtype, torch.float32)  # sums of large sets are beyond float16
        score_BNGK = score_RS.view(gate_BNG.shape[0], gate_BNG.shape[1], self.groups, -1)
        share_BNGK = score_BNGK.to(dtype).softmax(dim=-1) * gate_BNG[..., None]
        part_BNGP = wide_BNE.to(dtype).unflatten(-1, (self.groups, -1))
        sum_BKP = torch.einsum("bngk,bngp->bkp", share_BNGK, part_BNGP)
        vlad_BKP = unit_length(sum_BKP - share_BNGK.sum(dim=(1, 2))[..., None] * self.centre_KP).to(
            x_BND.dtype
        )
        return Pooled(self.out(self.norm(vlad_BKP.flatten(1))), weights=gate_BNG.mean(dim=-1))
