"""Words through a bidirectional GRU: the text encoder of VSE-infinity's BiGRU branch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from encoders.base import TextEncoder
from encoders.glove import read_glove
from encoders.vocabulary import Vocabulary, count_words
from infra.registry import ENCODERS


@ENCODERS.register("bigru")
class BiGRU(TextEncoder):
    """Word embeddings and one bidirectional layer; the two directions are averaged.

    Args:
        assets: `words`, the vocabulary.
        width: width of the GRU per direction, and of the elements that come out.
        embedding: width of the word embeddings.
        min_count: a word of the training captions is known if it occurs this often (SCAN's lists: 4).
        dropout: share of embedding values dropped in training.
        glove: a GloVe text file whose vectors the known words start from; others start uniform in ±0.1.
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
    ) -> None:
        super().__init__()
        self.width = width
        self.glove = glove
        self.words = self.tokenizer(assets).words
        self.embed = nn.Embedding(len(self.words), embedding)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        self.dropout = nn.Dropout(dropout)
        self.rnn = nn.GRU(embedding, width, batch_first=True, bidirectional=True)

    @classmethod
    def prepare(cls, captions: Iterable[str], *, min_count: int = 4, **_: Any) -> dict[str, Any]:
        """Count the words of the training captions."""
        return {"words": count_words(captions, min_count=min_count)}

    @classmethod
    def tokenizer(cls, assets: Mapping[str, Any]) -> Vocabulary:
        """Return the vocabulary."""
        return Vocabulary(assets["words"])

    def load_pretrained(self) -> None:
        """Start the embeddings of known words from GloVe, where a file is given."""
        if not self.glove:
            return
        vectors = read_glove(self.glove, self.words, dim=self.embed.embedding_dim)
        with torch.no_grad():
            for number, word in enumerate(self.words):
                if word in vectors:
                    self.embed.weight[number] = torch.from_numpy(vectors[word])

    def forward(self, token_BL: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor]:
        """Encode token numbers `(B, L)` to word states `(B, L, D)`, zero in the pads."""
        embedded_BLE = self.dropout(self.embed(token_BL))
        packed = pack_padded_sequence(
            embedded_BLE, mask_BL.sum(dim=1).cpu(), batch_first=True, enforce_sorted=False
        )
        state_BL2D, _ = pad_packed_sequence(
            self.rnn(packed)[0], batch_first=True, total_length=token_BL.shape[1]
        )
        forward_BLD, backward_BLD = state_BL2D.chunk(2, dim=-1)
        return (forward_BLD + backward_BLD) / 2, mask_BL
