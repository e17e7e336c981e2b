"""NeXtVLAD (Lin, Xiao and Fan, ECCV workshops 2018): gated NetVLAD over groups of channels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.assignments.assigning import unit_length
from polypool.aggregators.attention import init_linear
from polypool.aggregators.masks import zero_pads
from polypool.infra.compute.batchnorm import SetBatchNorm
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("nextvlad")
class NeXtVLAD(Aggregator):
    """Elements are widened and split into groups of channels; a smaller NetVLAD takes each group as one element.

    A group's assignment to the clusters, a softmax of batch-normalised scores, is multiplied by a sigmoid gate of the
    whole element. Residual sums are normalised per cluster, concatenated, batch-normalised and mapped to the vector.
    Both batch norms use the real elements and sets of the global batch in training, and running statistics in
    evaluation; these have a momentum of 0.1 (0.001 in the authors' code). Maps start from He's normal weights. The
    dropout before the last map and the context gating after it belong to the authors' classifier and are omitted.

    Args:
        dim: width of the elements.
        clusters: number of clusters; 64 in the authors' code.
        groups: number of channel groups; must divide `expansion` x `dim`.
        expansion: factor by which elements are widened.
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
        init_linear(self, weight=nn.init.kaiming_normal_)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return vectors `(B, D)` and gates `(B, N)` in [0, 1], averaged over the groups."""
        wide_BNE = self.expand(zero_pads(x_BND, mask_BN))
        gate_BNG = zero_pads(self.gate(wide_BNE).sigmoid(), mask_BN)
        score_RS = self.assign_norm(self.assign(wide_BNE).flatten(0, 1), mask_BN.flatten())
        dtype = torch.promote_types(x_BND.dtype, torch.float32)  # sums over large sets overflow float16
        score_BNGK = score_RS.view(gate_BNG.shape[0], gate_BNG.shape[1], self.groups, -1)
        share_BNGK = score_BNGK.to(dtype).softmax(dim=-1) * gate_BNG[..., None]
        part_BNGP = wide_BNE.to(dtype).unflatten(-1, (self.groups, -1))
        sum_BKP = torch.einsum("bngk,bngp->bkp", share_BNGK, part_BNGP)
        vlad_BKP = unit_length(sum_BKP - share_BNGK.sum(dim=(1, 2))[..., None] * self.centre_KP).to(
            x_BND.dtype
        )
        return Pooled(self.out(self.norm(vlad_BKP.flatten(1))), weights=gate_BNG.mean(dim=-1))
