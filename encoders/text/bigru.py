"""Words through a bidirectional GRU: the text encoder of VSE-infinity's BiGRU branch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import pad_packed_sequence

from encoders.text.word_gru import WordGRU
from infra.registry import ENCODERS


@ENCODERS.register("bigru")
class BiGRU(WordGRU):
    """The states of every word; the two directions are averaged.

    Args:
        assets: `words`, the vocabulary.
        width: width of the GRU per direction, and of the elements that come out.
        embedding: width of the word embeddings.
        min_count: a word of the training captions is known if it occurs this often (SCAN's lists: 4).
        dropout: share of embedding values dropped in training.
        glove: a GloVe text file whose vectors the known words start from; others start uniform in ±0.1.
        ends: put tokens for start and end around a caption's words; HGR does not.
        split: how texts are split into words: `captions`, or `questions`, which keeps most punctuation.
        orthogonal: start the GRU from orthogonal matrices and zero biases, as HGR does.
    """

    def __init__(
        self,
        assets: Mapping[str, Any],
        *,
        width: int = 1024,
        embedding: int = 300,
        min_count: int = 4,
        dropout: float = 0.0,
        glove: str = "",
        ends: bool = True,
        split: str = "captions",
        orthogonal: bool = False,
    ) -> None:
        super().__init__(assets, embedding=embedding, hidden=width, dropout=dropout, glove=glove)
        self.width = width
        if orthogonal:
            for name, parameter in self.rnn.named_parameters():
                (nn.init.zeros_ if name.startswith("bias") else nn.init.orthogonal_)(parameter)

    def forward(self, token_BL: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor]:
        """Encode token numbers `(B, L)` to word states `(B, L, D)`, zero in the pads."""
        _, states, _ = self.read(token_BL, mask_BL)
        state_BL2D, _ = pad_packed_sequence(states, batch_first=True, total_length=token_BL.shape[1])
        forward_BLD, backward_BLD = state_BL2D.chunk(2, dim=-1)
        return (forward_BLD + backward_BLD) / 2, mask_BL
