"""What turns codes of ranks into scores' states: the generators of VSE-infinity, tables 8 and 11.

A decoder is called with codes `(S, N, C)` and the sets' sizes `(S,)` on any device, and returns states
`(S, N, decoder.width)`; what it returns beyond a set's size is not used. It is kept in the module under its own `name`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class BiGRU(nn.GRU):
    """A bidirectional GRU whose directions are averaged; its start and its end tell it how large a set is."""

    name = "gru"

    def __init__(self, codes: int, hidden: int) -> None:
        super().__init__(codes, hidden, batch_first=True, bidirectional=True)
        self.width = hidden

    def forward(self, code_SNC: Tensor, size_S: Tensor) -> Tensor:
        """Return the states `(S, N, hidden)`."""
        packed = pack_padded_sequence(code_SNC, size_S.cpu(), batch_first=True, enforce_sorted=False)
        state_SN2H, _ = pad_packed_sequence(
            super().forward(packed)[0], batch_first=True, total_length=code_SNC.shape[1]
        )
        forward_SNH, backward_SNH = state_SN2H.chunk(2, dim=-1)
        return (forward_SNH + backward_SNH) / 2


class Transformer(nn.TransformerEncoderLayer):
    """One layer of a transformer encoder, as wide as the codes."""

    name = "transformer"
    heads = 4

    def __init__(self, codes: int, hidden: int) -> None:
        if codes % self.heads:
            raise ValueError(f"a transformer needs codes of a width that {self.heads} divides, not {codes}")
        super().__init__(codes, self.heads, dim_feedforward=hidden, dropout=0.0, batch_first=True)
        self.width = codes

    def forward(self, code_SNC: Tensor, size_S: Tensor) -> Tensor:
        """Return the states `(S, N, C)`."""
        beyond_SN = torch.arange(code_SNC.shape[1], device=code_SNC.device) >= size_S[:, None]
        return super().forward(code_SNC, src_key_padding_mask=beyond_SN)


class MLP(nn.Sequential):
    """Every rank on its own, unaware of how large the set is."""

    name = "mlp"

    def __init__(self, codes: int, hidden: int) -> None:
        super().__init__(nn.Linear(codes, hidden), nn.ReLU())
        self.width = hidden

    def forward(self, code_SNC: Tensor, size_S: Tensor) -> Tensor:
        """Return the states `(S, N, hidden)`."""
        return super().forward(code_SNC)


DECODERS: dict[str, type[nn.Module]] = {"bigru": BiGRU, "transformer": Transformer, "mlp": MLP}
