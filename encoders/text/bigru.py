"""Words through a bidirectional GRU: the states of all words, or their embeddings beside the last states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from encoders.base import TextEncoder
from encoders.text.glove import read_glove
from encoders.text.vocabulary import SPLITS, Vocabulary, count_words
from infra.compute.gru import GRU
from infra.fields import Rule
from infra.registry import ENCODERS


@dataclass(frozen=True, kw_only=True)
class WordAssets:
    """The known words, in the order of their numbers, and how texts are split into them."""

    words: tuple[str, ...]
    ends: bool = True
    split: Annotated[str, Rule(f"one of {', '.join(SPLITS)}", SPLITS.__contains__)] = "captions"


class WordGRU(TextEncoder):
    """The base class of encoders of words: embeddings of known words, and one bidirectional layer over them.

    Args:
        assets: `words`, the vocabulary.
        embedding: width of the word embeddings.
        hidden: width of the GRU per direction.
        dropout: fraction of embedding values dropped in training.
        glove: a GloVe text file whose vectors the known words start from; others start uniform in ±0.1.
    """

    assets_kind = WordAssets

    def __init__(
        self, assets: Mapping[str, Any], *, embedding: int, hidden: int, dropout: float, glove: str
    ) -> None:
        super().__init__()
        self.glove = glove
        self.words = self.tokenizer(assets).words
        self.embed = nn.Embedding(len(self.words), embedding)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        self.dropout = nn.Dropout(dropout)
        self.rnn = GRU(embedding, hidden)

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

    def read(self, token_BL: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the embeddings `(B, L, E)`, the states of both directions `(B, L, 2, H)`, and the last `(2, B, H)`."""
        embedded_BLE = self.dropout(self.embed(token_BL))
        return embedded_BLE, *self.rnn(embedded_BLE, mask_BL.sum(dim=1))


@ENCODERS.register("bigru")
class BiGRU(WordGRU):
    """The states of every word; the two directions are averaged. The text encoder of VSE-infinity's BiGRU branch.

    Args:
        assets: `words`, the vocabulary.
        width: width of the GRU per direction, and of the elements that come out.
        embedding: width of the word embeddings.
        min_count: a word of the training captions is known if it occurs this often (SCAN's lists: 4).
        dropout: fraction of embedding values dropped in training.
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
        _, state_BL2D, _ = self.read(token_BL, mask_BL)
        return state_BL2D.mean(dim=2), mask_BL


@ENCODERS.register("words")
class Words(WordGRU):
    """Elements are the embeddings; the global feature is the average of the last states of a GRU's two directions.

    The text side of PVSE, and of DivE with a BiGRU.

    Args:
        assets: `words`, the vocabulary.
        width: width of the GRU per direction, and of the global feature.
        embedding: width of the word embeddings: of the elements.
        min_count: a word of the training captions is known if it occurs this often.
        dropout: fraction of embedding values dropped in training, for the elements and the GRU alike.
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
