"""Tokenizers, vocabularies of words, and padded batches of token numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from polypool.encoders.text.splitting import SPLITS
from polypool.infra.errors import unknown
from polypool.infra.ragged import ragged

SPECIALS = ("<pad>", "<start>", "<end>", "<unk>", "<mask>")


class Tokenizer(Protocol):
    """Splits captions into words, each a list of subwords; `pad_tokens` adds `start` and `end` where `ends` is True."""

    size: int
    ends: bool
    start: int
    end: int
    mask: int

    def encode(self, captions: Sequence[str]) -> Iterator[list[list[int]]]:
        """Yield each caption's words as lists of subword numbers, without special tokens."""

    def subwords(self, numbers: Sequence[int]) -> list[str]:
        """Return each subword as text, special tokens too."""


@runtime_checkable
class WordTokenizer(Tokenizer, Protocol):
    """A tokenizer whose subwords are whole words."""

    def split(self, caption: str) -> list[str]:
        """Return a caption's words, as many as `encode` numbers."""


def as_written(tokenizer: Tokenizer, caption: str, numbers: Sequence[int]) -> list[str]:
    """Return a caption's subwords as text; an unknown word as `WORD (unknown)`.

    Args:
        tokenizer: of the caption.
        caption: the text.
        numbers: its first subwords, with the special tokens around them.
    """
    subwords = tokenizer.subwords(numbers)
    if not isinstance(tokenizer, WordTokenizer):
        return subwords
    words, ends = iter(tokenizer.split(caption)), (tokenizer.start, tokenizer.end)
    return [
        subword if number in ends or (word := next(words, subword)) == subword else f"{word} (unknown)"
        for number, subword in zip(numbers, subwords, strict=True)
    ]


def count_words(captions: Iterable[str], *, min_count: int, split: str = "captions") -> list[str]:
    """Return the words that occur at least `min_count` times, the most frequent first, ties by spelling."""
    if split not in SPLITS:
        raise unknown("way to split a text:", split, SPLITS)
    counts = Counter(word for caption in captions for word in SPLITS[split](caption))
    frequent = [word for word, count in counts.items() if count >= min_count]
    return sorted(frequent, key=lambda word: (-counts[word], word))


class Vocabulary:
    """A word-level tokenizer.

    Args:
        words: the words after `SPECIALS`, in the order of their numbers.
        ends: whether captions get `<start>` and `<end>`.
        split: a key of `SPLITS`.
    """

    start, end, unknown, mask = (SPECIALS.index(name) for name in ("<start>", "<end>", "<unk>", "<mask>"))

    def __init__(self, words: Sequence[str], *, ends: bool = True, split: str = "captions") -> None:
        self.words = (*SPECIALS, *words)
        self.ends = ends
        self._split = SPLITS[split]
        self.size = len(self.words)
        self._number = {word: number for number, word in enumerate(self.words)}

    def split(self, caption: str) -> list[str]:
        return self._split(caption)

    def encode(self, captions: Sequence[str]) -> Iterator[list[list[int]]]:
        """Yield each caption's words, one subword each; unknown words become `<unk>`."""
        for caption in captions:
            yield [[self._number.get(word, self.unknown)] for word in self.split(caption)]

    def subwords(self, numbers: Sequence[int]) -> list[str]:
        return [self.words[number] for number in numbers]


def pad_tokens(subword_P: np.ndarray, size_B: np.ndarray, tokenizer: Tokenizer) -> tuple[Tensor, Tensor]:
    """Return token numbers `(B, L)`, int64, 0 in the pads, and their mask `(B, L)`.

    Args:
        subword_P: the subwords of B texts, one after another, without special tokens.
        size_B: number of subwords of each text.
        tokenizer: adds `start` and `end` where `ends` is True; elsewhere a text without a subword keeps one pad, so
            that no set is empty.
    """
    ends = int(tokenizer.ends)
    row_P, place_P = ragged(ends, size_B)
    size_B = np.maximum(size_B, 1 - ends)
    token_BL = np.zeros((len(size_B), size_B.max(initial=0) + 2 * ends), np.int64)
    token_BL[row_P, place_P] = subword_P
    if ends:
        token_BL[:, 0] = tokenizer.start
        token_BL[np.arange(len(size_B)), size_B + 1] = tokenizer.end
    mask_BL = np.arange(token_BL.shape[1]) < size_B[:, None] + 2 * ends
    return torch.from_numpy(token_BL), torch.from_numpy(mask_BL)
