"""The generalised pooling operator (VSE-infinity, section 3.2 and its code)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from aggregators.base import Aggregator, sort_descending
from aggregators.positions import sinusoids
from infra.registry import AGGREGATORS


@AGGREGATORS.register("gpo")
class GPO(Aggregator):
    """A weighted sum over each channel's sorted values, with weights learned from the positions alone.

    Codes of the positions 0..N-1 go through a bidirectional GRU whose directions are averaged, then a
    linear map without bias; the softmax of score / temperature gives the weight of every rank. Weights
    depend on a set's size only, so they are computed once for each distinct size in a batch.

    Args:
        dim: width of the elements; the weights do not depend on it.
        positions: width of the position codes.
        hidden: width of the GRU, per direction.
        temperature: divides the scores; 0.1 is in the authors' code and not in the paper.
    """

    def __init__(self, dim: int, *, positions: int = 32, hidden: int = 32, temperature: float = 0.1) -> None:
        super().__init__()
        if temperature <= 0:
            raise ValueError(f"temperature must be above 0, not {temperature}")
        self.positions = positions
        self.temperature = temperature
        self.gru = nn.GRU(positions, hidden, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(hidden, 1, bias=False)

    def size_weights(self, size_S: Tensor) -> Tensor:
        """Return the `(S, max size)` weights of sets of the given sizes, zero beyond a set's size."""
        longest = int(size_S.max())
        dtype = self.linear.weight.dtype
        code_NP = sinusoids(longest, self.positions, device=self.linear.weight.device, dtype=dtype)
        codes = pack_padded_sequence(
            code_NP.expand(len(size_S), -1, -1), size_S.cpu(), batch_first=True, enforce_sorted=False
        )
        state_SN2H, _ = pad_packed_sequence(self.gru(codes)[0], batch_first=True)
        forward_SNH, backward_SNH = state_SN2H.chunk(2, dim=-1)
        score_SN = self.linear((forward_SNH + backward_SNH) / 2).squeeze(-1) / self.temperature
        beyond_SN = torch.arange(longest, device=score_SN.device) >= size_S.to(score_SN.device)[:, None]
        return score_SN.masked_fill(beyond_SN, float("-inf")).softmax(dim=-1)

    def weights(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the `(B, N)` weights over sorted positions."""
        size_S, set_B = mask_BN.sum(dim=1).unique(return_inverse=True)
        weight_SN = self.size_weights(size_S)
        return nn.functional.pad(weight_SN, (0, mask_BN.shape[1] - weight_SN.shape[1]))[set_B]

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the `(B, D)` pooled vectors."""
        weight_BN = self.weights(x_BND, mask_BN).to(x_BND.dtype)
        return torch.einsum("bnd,bn->bd", sort_descending(x_BND, mask_BN), weight_BN)
