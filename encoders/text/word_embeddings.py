"""Word embeddings as a set, the whole caption as a global feature: the text side of PVSE, and of DivE with a BiGRU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from encoders.text.word_gru import WordGRU
from infra.registry import ENCODERS


@ENCODERS.register("words")
class Words(WordGRU):
    """Elements are the embeddings; the global feature is the average of the last states of a GRU's two directions.

    Args:
        assets: `words`, the vocabulary.
        width: width of the GRU per direction, and of the global feature.
        embedding: width of the word embeddings: of the elements.
        min_count: a word of the training captions is known if it occurs this often.
        dropout: share of embedding values dropped in training, for the elements and the GRU alike.
        glove: a GloVe text file whose vectors the known words start from (DivE: 840B.300d); others in ±0.1.
        split: how texts are split into words: `captions`, or `questions`, which keeps most punctuation.
    """

    def __init__(
        self,
        assets: Mapping[str, Any],
        *,
        width: int = 1024,
        embedding: int = 300,
        min_count: int = 4,
        dropout: float = 0.1,
        glove: str = "",
        split: str = "captions",
    ) -> None:
        super().__init__(assets, embedding=embedding, hidden=width, dropout=dropout, glove=glove)
        self.width = embedding
        self.global_width = width

    def forward(self, token_BL: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encode token numbers `(B, L)` to embeddings `(B, L, E)` and global features `(B, S)`."""
        embedded_BLE, _, last_2BS = self.read(token_BL, mask_BL)
        return embedded_BLE, mask_BL, last_2BS.mean(dim=0)
