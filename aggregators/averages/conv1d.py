"""A convolution as long as the sequence (a baseline of Stefanini et al. 2020, section IV-C)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import check_counts
from polypool.aggregators.averages.weighted import WeightedSum
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("conv1d")
class Conv1d(WeightedSum):
    """A weighted sum with one learned weight for each position and channel.

    The paper's kernel covers the whole sequence, so it is applied at one position only and reduces to a weight per
    position. Sequences here differ in length: shorter ones use the first weights, and in longer ones all elements from
    the last position on share the last weight. The kernel is depthwise: the paper gives no parameter count, and a full
    kernel would have 38 million weights for 36 regions at width 1024. It is initialised as a mean, up to a factor.

    Args:
        dim: width of the elements.
        positions: number of positions with separate weights.
    """

    symmetric = False

    def __init__(self, dim: int, *, positions: int = 64) -> None:
        super().__init__()
        check_counts(positions=positions)
        self.kernel_PD = nn.Parameter(torch.full((positions, dim), 1 / positions))

    def weigh(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the `(B, N, D)` weights; positions count real elements only."""
        position_BN = (mask_BN.long().cumsum(dim=1) - 1).clamp(min=0, max=len(self.kernel_PD) - 1)
        return nn.functional.embedding(position_BN, self.kernel_PD).masked_fill(~mask_BN[..., None], 0.0)
