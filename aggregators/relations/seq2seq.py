"""A GRU over the elements: Seq2Seq in table 1 of VSE-infinity, and the last stage of VSRN's image encoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.aggregators.masks import zero_pads
from polypool.infra.compute.gru import read_padded, taken
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("seq2seq")
class Seq2Seq(Aggregator):
    """The last state of a unidirectional GRU as wide as the elements.

    It has 6.3 M parameters at width 1024, as in table 1 of VSE-infinity.
    """

    symmetric = False

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gru = nn.RNNBase("GRU", dim, dim, batch_first=True)  # torch.compile does not support nn.GRU

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the states `(B, D)` after the last real element.

        Padding is moved behind the real elements, where it cannot change that state; nothing is packed, and no size
        leaves the device.
        """
        order_BN = mask_BN.int().argsort(dim=1, descending=True, stable=True)
        x_BND = taken(zero_pads(x_BND, mask_BN), order_BN)
        state_BND = read_padded(x_BND, *self.gru.parameters())
        return Pooled(state_BND[torch.arange(x_BND.shape[0], device=x_BND.device), mask_BN.sum(dim=1) - 1])
