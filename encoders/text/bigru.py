"""Bidirectional GRU over word embeddings: all states, or the embeddings and the last states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from polypool.encoders.encoder import TextEncoder
from polypool.encoders.text.tokenizers import SPLITS, Vocabulary, count_words
from polypool.infra.compute.dropout import Dropout
from polypool.infra.compute.gru import GRU
from polypool.infra.errors import InputError, unknown
from polypool.infra.fields import Rule
from polypool.infra.paths import FilePath
from polypool.infra.process.progress import Progress
from polypool.infra.registry import ENCODERS

STARTS: dict[str, Callable[[Tensor], object]] = {
    "uniform": lambda weight_VE: nn.init.uniform_(weight_VE, -0.1, 0.1),
    "scaled": lambda weight_VE: nn.init.uniform_(
        weight_VE, -(weight_VE.shape[1] ** -0.5), weight_VE.shape[1] ** -0.5
    ),
    "normal": nn.init.normal_,
    "zero": nn.init.zeros_,
}
"""Initial embeddings of words without a GloVe vector: uniform in ±0.1 as in VSE++, uniform in ±1 / sqrt(width) as in
HGR, N(0, 1) as in PVSE and DivE, zero as in the bottom-up-attention baseline of VQA."""


@dataclass(frozen=True, kw_only=True)
class WordAssets:
    """The vocabulary in the order of its ids, whether texts get start and end tokens, and how they are split."""

    words: tuple[str, ...]
    ends: bool = True
    split: Annotated[str, Rule(f"one of {', '.join(SPLITS)}", SPLITS.__contains__)] = "captions"


def read_glove(path: str | Path, words: Iterable[str], *, dim: int) -> dict[str, np.ndarray]:
    """Return the vectors `(dim,)` of those `words` in a GloVe text file, with lines `word v1 ... vD`.

    Lines are split from the right, because some words of the 840B file contain spaces.

    Raises:
        InputError: the file is missing or wider than `dim`, or a line of a word does not end in `dim` numbers.
    """
    path, vocabulary, vectors = Path(path), set(words), {}
    if not path.is_file():
        raise InputError(
            f"{path}: no such GloVe file; give the path of a text file such as glove.6B.300d.txt"
        )
    with (
        path.open(encoding="utf-8", errors="replace") as lines,
        Progress(desc=f"reading {path.name}", unit="word") as bar,
    ):
        found = dim
        for number, line in enumerate(lines, start=1):
            found = line.count(" ") if number == 1 else found
            word, *values = line.rstrip("\n").rsplit(" ", dim)
            if word in vocabulary:
                try:
                    vector = np.array(values, dtype=np.float32)
                except ValueError:
                    vector = np.empty(0)
                if vector.shape != (dim,) or not np.isfinite(vector).all():
                    raise InputError(
                        f"{path}, line {number}: expected a word and {dim} numbers; is the width {dim}?"
                    )
                vectors[word] = vector
            bar.update()
    if not vectors and found > dim:  # of a wider file, no word is recognised
        raise InputError(f"{path}: its first line has {found} numbers, and the width (embedding) is {dim}")
    return vectors


def simpler(word: str) -> str:
    """Return a word up to its first slash, without hyphens, periods and apostrophes, as in PVSE and DivE."""
    return word.translate(str.maketrans("", "", "-.'")).split("/")[0]


class WordGRU(TextEncoder):
    """Base class of word encoders: embeddings and one bidirectional GRU layer.

    Args:
        assets: `words`, the vocabulary.
        embedding: width of the word embeddings.
        hidden: width of the GRU per direction.
        dropout: dropout rate of embeddings.
        glove: GloVe text file for the initial embeddings of words in the vocabulary.
        start: initial embeddings of other words, a key of `STARTS`.
        retry: whether a word that the file lacks takes the vector of `simpler(word)`.
    """

    assets_kind = WordAssets

    def __init__(
        self,
        assets: Mapping[str, Any],
        *,
        embedding: int,
        hidden: int,
        dropout: float,
        glove: FilePath,
        start: str,
        retry: bool = False,
    ) -> None:
        super().__init__()
        if start not in STARTS:
            raise unknown("start of words:", start, STARTS)
        self.glove, self.retry = glove, retry
        self.words = self.tokenizer(assets).words
        self.embed = nn.Embedding(len(self.words), embedding)
        STARTS[start](self.embed.weight)
        self.dropout = Dropout(dropout)
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
        words = count_words(captions, min_count=min_count, split=split)
        return {"words": words, "ends": ends, "split": split}

    @classmethod
    def tokenizer(cls, assets: Mapping[str, Any]) -> Vocabulary:
        ends, split = assets.get("ends", True), assets.get("split", "captions")
        return Vocabulary(assets["words"], ends=ends, split=split)

    def load_pretrained(self) -> None:
        """Load GloVe vectors of the vocabulary, if a file is given."""
        if not self.glove:
            return
        tries = {word: (word, simpler(word)) if self.retry else (word,) for word in self.words}
        wanted = {name for names in tries.values() for name in names}
        vectors = read_glove(self.glove, wanted, dim=self.embed.embedding_dim)
        with torch.no_grad():
            for number, word in enumerate(self.words):
                if found := [vectors[name] for name in tries[word] if name in vectors]:
                    self.embed.weight[number] = torch.from_numpy(found[0])

    def read(self, token_BL: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the embeddings `(B, L, E)`, the states of both directions `(B, L, 2, H)`, and the last `(2, B, H)`."""
        embedded_BLE = self.dropout(self.embed(token_BL))
        return embedded_BLE, *self.rnn(embedded_BLE, mask_BL.sum(dim=1))


@ENCODERS.register("bigru")
class BiGRU(WordGRU):
    """The states of all words, averaged over both directions: the text encoder of VSE-infinity's BiGRU branch.

    Args:
        assets: `words`, the vocabulary.
        width: width of the GRU per direction, and of the elements.
        embedding: width of the word embeddings.
        min_count: minimum number of occurrences of a word in the training captions (SCAN: 4).
        dropout: dropout rate of embeddings.
        glove: GloVe text file for the initial embeddings of words in the vocabulary.
        start: initial embeddings of other words: `uniform`, `scaled`, `normal` or `zero`; see `STARTS`.
        ends: add start and end tokens to captions; HGR does not.
        split: how texts are split into words: `captions`; `treebank`, as nltk; or `questions`, which keeps most
            punctuation.
        orthogonal: initialise the GRU with orthogonal matrices and zero biases, as HGR does.
    """

    def __init__(
        self,
        assets: Mapping[str, Any],
        *,
        width: int = 1024,
        embedding: int = 300,
        min_count: int = 4,
        dropout: float = 0.0,
        glove: FilePath = "",
        start: str = "uniform",
        ends: bool = True,
        split: str = "captions",
        orthogonal: bool = False,
    ) -> None:
        super().__init__(assets, embedding=embedding, hidden=width, dropout=dropout, glove=glove, start=start)
        self.width = width
        if orthogonal:
            for name, parameter in self.rnn.named_parameters():
                (nn.init.zeros_ if name.startswith("bias") else nn.init.orthogonal_)(parameter)

    def forward(self, token_BL: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor]:
        """Encode token ids `(B, L)` to word states `(B, L, D)`, zero in the padding."""
        _, state_BL2D, _ = self.read(token_BL, mask_BL)
        return state_BL2D.mean(dim=2), mask_BL


@ENCODERS.register("words")
class Words(WordGRU):
    """Word embeddings, with the last states of a GRU as global feature: the text side of DivE and PVSE.

    Args:
        assets: `words`, the vocabulary.
        width: width of the global feature.
        embedding: width of the word embeddings, the elements.
        min_count: minimum number of occurrences of a word in the training captions.
        dropout: dropout rate of embeddings, shared by the elements and the GRU.
        glove: GloVe text file for the initial embeddings of words in the vocabulary (DivE and PVSE: 840B.300d).
        start: initial embeddings of other words: `uniform`, `scaled`, `normal` or `zero`; see `STARTS`.
        retry: whether a word that the file lacks takes the vector of `simpler(word)`.
        split: see `BiGRU`.
        summary: `mean` (DivE): the average of the last states of both directions, each `width` wide; `last_word`
            (PVSE): both directions' states at the last word, each half as wide, concatenated; the backward state has
            read only that word.
    """

    def __init__(
        self,
        assets: Mapping[str, Any],
        *,
        width: int = 1024,
        embedding: int = 300,
        min_count: int = 4,
        dropout: float = 0.1,
        glove: FilePath = "",
        start: str = "uniform",
        retry: bool = False,
        split: str = "captions",
        summary: str = "mean",
    ) -> None:
        if summary not in ("mean", "last_word"):
            raise unknown("summary of words:", summary, ("mean", "last_word"))
        at_last_word = summary == "last_word"
        if at_last_word and width % 2:
            raise InputError(f"width={width}: two concatenated directions need an even width")
        hidden = width // 2 if at_last_word else width
        super().__init__(
            assets, embedding=embedding, hidden=hidden, dropout=dropout, glove=glove, start=start, retry=retry
        )
        self.width, self.global_width, self.at_last_word = embedding, width, at_last_word

    def forward(self, token_BL: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encode token ids `(B, L)` to embeddings `(B, L, E)` and global features `(B, S)`."""
        embedded_BLE, state_BL2H, last_2BH = self.read(token_BL, mask_BL)
        if not self.at_last_word:
            return embedded_BLE, mask_BL, last_2BH.mean(dim=0)
        last_word_B = mask_BL.sum(dim=1) - 1
        row_B = torch.arange(len(last_word_B), device=last_word_B.device)
        return embedded_BLE, mask_BL, state_BL2H[row_B, last_word_B].flatten(1)
