"""Variants of GPO that break the symmetry of signed features, under which it weighs both ends of the ranks.

A linear map before the pooling may flip the sign of any channel, and its largest values become its smallest. GPO, whose
weights are shared by all channels, cannot know which end of a channel indicates presence. Each variant removes that
freedom in another way. They are not registered, and train from a checkout:

    polypool sweep --recipes coco_mini_dinov2_minilm --aggregators gpo benchmarks.gpo_ends:Rectified ... --seeds 3
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.aggregators.ranks.gpo import GPO


class Rectified(GPO):
    """GPO of max(x, 0), so that absence is 0 in every channel and its smallest values carry no information."""

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        return super().forward(x_BND.relu(), mask_BN)


class Magnitude(GPO):
    """GPO over ranks by |x|: the values with the largest magnitude first, with their signs."""

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        far_BND = x_BND.detach().abs().masked_fill(~mask_BN[..., None], -1.0)
        sorted_BND = x_BND.gather(1, far_BND.argsort(dim=1, descending=True))
        weight_BN = self._weights(x_BND, mask_BN)
        real_BND = sorted_BND.masked_fill((weight_BN == 0)[..., None], 0.0)
        return Pooled(torch.einsum("bnd,bn->bd", real_BND, weight_BN), weights=weight_BN)


class OneSided(GPO):
    """GPO whose weights are 0 in the lower half of the ranks, and sum to 1 in the upper one."""

    def _decode(self, size_S: Tensor, sorted_SND: Tensor | None, longest: int) -> Tensor:
        weight_SNC = super()._decode(size_S, sorted_SND, longest)
        upper_S = (size_S.to(weight_SNC.device) + 1) // 2
        lower_SN = torch.arange(longest, device=weight_SNC.device) >= upper_S[:, None]
        weight_SNC = weight_SNC.masked_fill(lower_SN[..., None], 0.0)
        return weight_SNC / weight_SNC.sum(dim=1, keepdim=True)


class BeforeMap(Aggregator):
    """GPO of the stored features, before instead of after the linear map and the MLP of `regions`.

    For `--visual stored`: the pooled vector is standardised over the batch, then mapped by the layers of `regions`.

    Args:
        dim: width of the elements.
    """

    weights_over = "ranks"

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.pooling = GPO(dim)
        self.standard = nn.BatchNorm1d(dim, affine=False)
        self.linear = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, dim // 2), nn.BatchNorm1d(dim // 2), nn.ReLU(), nn.Linear(dim // 2, dim)
        )

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        pooled = self.pooling(x_BND, mask_BN)
        x_BD = self.standard(pooled.vectors)
        return Pooled(self.linear(x_BD) + self.mlp(x_BD), weights=pooled.weights)
