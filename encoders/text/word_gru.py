"""What the encoders of words share: a vocabulary, embeddings, and a bidirectional GRU over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from encoders.base import TextEncoder
from encoders.text.glove import read_glove
from encoders.text.vocabulary import Vocabulary, count_words


class WordGRU(TextEncoder):
    """Embeddings of known words and one bidirectional layer.

    Args:
        assets: `words`, the vocabulary.
        embedding: width of the word embeddings.
        hidden: width of the GRU per direction.
        dropout: share of embedding values dropped in training.
        glove: a GloVe text file whose vectors the known words start from; others start uniform in ±0.1.
    """

    def __init__(
        self, assets: Mapping[str, Any], *, embedding: int, hidden: int, dropout: float, glove: str
    ) -> None:
        super().__init__()
        self.glove = glove
        self.words = self.tokenizer(assets).words
        self.embed = nn.Embedding(len(self.words), embedding)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        self.dropout = nn.Dropout(dropout)
        self.rnn = nn.GRU(embedding, hidden, batch_first=True, bidirectional=True)

    @classmethod
    def prepare(
        cls,
        captions: Iterable[str],
        *,
        min_count: int = 4,
        ends: bool = True,
        split: str = "captions",
        **_: Any,
    ) -> dict[str, Any]:
        """Count the words of the training captions."""
        words = count_words(captions, min_count=min_count, split=split)
        return {"words": words, "ends": ends, "split": split}

    @classmethod
    def tokenizer(cls, assets: Mapping[str, Any]) -> Vocabulary:
        """Return the vocabulary."""
        ends, split = assets.get("ends", True), assets.get("split", "captions")
        return Vocabulary(assets["words"], ends=ends, split=split)

    def load_pretrained(self) -> None:
        """Start the embeddings of known words from GloVe, where a file is given."""
        if not self.glove:
            return
        vectors = read_glove(self.glove, self.words, dim=self.embed.embedding_dim)
        with torch.no_grad():
            for number, word in enumerate(self.words):
                if word in vectors:
                    self.embed.weight[number] = torch.from_numpy(vectors[word])

    def read(self, token_BL: Tensor, mask_BL: Tensor) -> tuple[Tensor, PackedSequence, Tensor]:
        """Return the embeddings `(B, L, E)`, the packed states of both directions, and the last ones `(2, B, H)`."""
        embedded_BLE = self.dropout(self.embed(token_BL))
        packed = pack_padded_sequence(
            embedded_BLE, mask_BL.sum(dim=1).cpu(), batch_first=True, enforce_sorted=False
        )
        states, last_2BH = self.rnn(packed)
        return embedded_BLE, states, last_2BH
