"""An LSTM over a sequence, then the mean: seqLSTM of CLIP4Clip (Luo et al., Neurocomputing 2022)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.aggregators.masks import masked_mean, zero_pads
from polypool.infra.compute.gru import taken
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("seq_lstm")
class SeqLSTM(Aggregator):
    """Unidirectional LSTM states are added to their elements; the sums are L2-normalised and averaged.

    As in the authors' code: one layer with the width of the elements, without position encodings. `sequential` uses a
    transformer instead.
    """

    symmetric = False

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.lstm = nn.RNNBase("LSTM", dim, dim, batch_first=True)  # torch.compile does not support nn.LSTM

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the means `(B, D)`. Padding is moved behind the real elements, whose states it cannot change."""
        order_BN = mask_BN.int().argsort(dim=1, descending=True, stable=True)
        x_BND = taken(zero_pads(x_BND, mask_BN), order_BN)
        weights = tuple(self.lstm.parameters())
        start_1BD = x_BND.new_zeros(1, x_BND.shape[0], x_BND.shape[2], dtype=weights[0].dtype)
        start, sets = (start_1BD, start_1BD), x_BND.to(weights[0].dtype)
        training = torch.is_grad_enabled()  # cuDNN gives no gradients in evaluation mode
        with torch.autocast(x_BND.device.type, enabled=False):  # LSTMs on CPUs do not mix float16 and float32
            state_BND, *_ = torch.lstm(sets, start, weights, True, 1, 0.0, training, False, True)
        unit_BND = nn.functional.normalize(x_BND + state_BND, dim=-1, eps=1e-6)
        return Pooled(masked_mean(unit_BND, mask_BN.take_along_dim(order_BN, dim=1)))
