"""Tokenizers, word splitting, vocabularies, and padded batches of token ids."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import regex
import torch
from torch import Tensor

from polypool.infra.errors import unknown
from polypool.infra.ragged import ragged

_SENTENCE = re.compile(r"(?<!\S)(\S*)\.[]})\"']*\s+")
_NO_END = re.compile(
    r"[^\W\d_]|[\d.,]+|mrs?|ms|dr|st|jr|sr|prof|gen|sen|lt|maj|co|corp|inc|ltd|bros|ft|ave|vs"
    r"|[ap]\.m|u\.s|n\.y|l\.a|d\.c|ph\.d|j\.[bcjkpr]"
)

_QUOTES = re.compile(r"[\xab\u201c\u2018\u201e]|``|`")
_OPENING = re.compile(r"""^"|(?<=[ ([{<])(?:"|'')""")
_LONE_LETTER = re.compile(r"'(?=[^\Wmtsdn]\b)")
_LAST_PERIOD = re.compile(r"""(?<=[^.])\.(?=[])}>"'\xbb\u201d\u2019\s]*+$)""")
_ALONE = re.compile(r"[][(){}<>;@#$%&?!*\xbb\u201d\u2019]|\.{2,}|--|''|[:,](?!\d)")
_CLOSING = re.compile(r"(?<=[^'])'(?= )")
_CLITIC = re.compile(r"(?<=[^' ])'[smd]?(?= )")
_LONG_CLITIC = re.compile(r"(?<=[^' ])(?:'ll|'re|'ve|n't)(?= )")
_TOGETHER = re.compile(r"\b(?:cannot|gimme|lemme|gonna|gotta|d'ye|more'n|wanna(?= ))\b|(?<= )'t(?:is|was)\b")
_FIRST = {"d'ye": 1, "'tis": 2, "'twas": 2, "more'n": 4}
"""Length of the first part of a contraction of two words, if it is not three."""
# a word does not start with a mark: a preceding emoji's mark is not part of it
_WORD = regex.compile(r"(?!\p{M})(?:\w+(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b|\w+(?:[-.&/]\w+)*)|\S")
_UNSPACED = regex.compile(
    r"\p{Katakana}[\p{Katakana}ー]*+"
    r"|(?=[\p{Han}\p{Hiragana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}ー々])\X"
)
"""Words of scripts without spaces: a run of Katakana, or a character with its marks (UAX 29)."""


def spaced(text: str) -> str:
    """Return a text in lower case and NFC, with spaces around the words of scripts that are written without spaces.

    Words of these scripts are single characters, except in Katakana, because Unicode has no dictionary: `草地` is two
    words. ASCII texts are only lower-cased.
    """
    text = text.lower()
    return text if text.isascii() else _UNSPACED.sub(r" \g<0> ", unicodedata.normalize("NFC", text))


def split_treebank(text: str) -> list[str]:
    """Lower-case a text and split it into words as nltk's `word_tokenize`, which built SCAN's vocabularies.

    The rules are the Penn Treebank's with the extensions of nltk 3.3 to 3.9: quotes become
    `` and '', `cannot` is two words, and `5:50` is one. They apply to single sentences, because only a sentence's last
    period is a word. Deviation: nltk detects sentence ends with a trained model (Punkt); here every period before white
    space ends a sentence, except in common abbreviations, initials and numbers.
    """
    return [word for sentence in _sentences(spaced(text)) for word in _words(sentence)]


def _sentences(text: str) -> list[str]:
    ends = [0]
    for found in _SENTENCE.finditer(text):
        if not _NO_END.fullmatch(found[1].lstrip("\"'([{")):
            ends.append(found.end())
    return [text[start:end].strip() for start, end in zip(ends, [*ends[1:], len(text)], strict=True)]


def _words(sentence: str) -> list[str]:
    text = _OPENING.sub(" `` ", _QUOTES.sub(r" \g<0> ", sentence))
    text = _LONE_LETTER.sub("' ", text)
    text = _LAST_PERIOD.sub(" . ", text)
    text = _CLOSING.sub(" ' ", text)
    text = _ALONE.sub(r" \g<0> ", text).replace('"', " '' ")
    text = f" {' '.join(text.split())} "
    text = _LONG_CLITIC.sub(r" \g<0>", _CLITIC.sub(r" \g<0>", text))
    return _TOGETHER.sub(_apart, text).split()


def _apart(found: re.Match[str]) -> str:
    at = _FIRST.get(found[0], 3)
    return f" {found[0][:at]} {found[0][at:]} "


def split_words(caption: str) -> list[str]:
    """Lower-case a caption and split off clitics and punctuation, similarly to `split_treebank`.

    Quotes are not changed, `cannot` is one word and `5:50` three; 0.3 % of COCO's captions differ.
    """
    return _WORD.findall(spaced(caption))


def split_question(question: str) -> list[str]:
    """Lower-case a question, drop commas and question marks, split off `'s` and split at white space.

    As in the bottom-up-attention baseline of visual question answering.
    """
    return spaced(question).replace(",", "").replace("?", "").replace("'s", " 's").split()


SPLITS: dict[str, Callable[[str], list[str]]] = {
    "captions": split_words,
    "questions": split_question,
    "treebank": split_treebank,
}
"""Ways to split a text, by their names in specs."""


SPECIALS = ("<pad>", "<start>", "<end>", "<unk>", "<mask>")


class Tokenizer(Protocol):
    """Splits captions into words, each a list of subword ids.

    `pad_tokens` adds the id `start` if `starts` is True, and `end` if `ends` is. `unknown` is the id for unknown words,
    -1 without one. `longest` is the model's maximum number of subwords without special tokens, 0 for no limit.
    """

    size: int
    longest: int
    unknown: int
    starts: bool
    ends: bool
    start: int
    end: int
    mask: int

    def encode(self, captions: Sequence[str]) -> Iterator[list[list[int]]]:
        """Yield each caption's words as lists of subword ids, without special tokens."""

    def subwords(self, numbers: Sequence[int]) -> list[str]:
        """Return each subword as text, including special tokens."""


@runtime_checkable
class WordTokenizer(Tokenizer, Protocol):
    """A tokenizer whose subwords are whole words."""

    def split(self, caption: str) -> list[str]:
        """Return a caption's words, as many as `encode` numbers."""


def as_written(tokenizer: Tokenizer, caption: str, numbers: Sequence[int]) -> list[str]:
    """Return a caption's subwords as text; unknown words as `WORD (unknown)`.

    Args:
        tokenizer: of the caption.
        caption: the text.
        numbers: its first subword ids, with special tokens.
    """
    subwords = tokenizer.subwords(numbers)
    if not isinstance(tokenizer, WordTokenizer):
        return subwords
    words, ends = iter(tokenizer.split(caption)), (tokenizer.start, tokenizer.end)
    return [
        subword if number in ends or (word := next(words, subword)) == subword else f"{word} (unknown)"
        for number, subword in zip(numbers, subwords, strict=True)
    ]


def unknown_words(tokenizer: Tokenizer, text: str) -> list[str]:
    """Return a text's words outside a word tokenizer's vocabulary, in order; empty for subword tokenizers."""
    if not isinstance(tokenizer, WordTokenizer):
        return []
    (numbers,) = tokenizer.encode([text])
    return [
        word
        for word, (number,) in zip(tokenizer.split(text), numbers, strict=True)
        if number == tokenizer.unknown
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
        words: the words after `SPECIALS`, in the order of their ids.
        ends: whether captions get `<start>` and `<end>`.
        split: a key of `SPLITS`.
    """

    longest = 0
    start, end, unknown, mask = (SPECIALS.index(name) for name in ("<start>", "<end>", "<unk>", "<mask>"))

    def __init__(self, words: Sequence[str], *, ends: bool = True, split: str = "captions") -> None:
        self.words = (*SPECIALS, *words)
        self.starts = self.ends = ends
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
    """Return token ids `(B, L)`, int64, 0 in the padding, and their mask `(B, L)`.

    Args:
        subword_P: the subword ids of B texts, concatenated, without special tokens.
        size_B: number of subwords of each text.
        tokenizer: adds `start` if `starts` is True, and `end` if `ends` is; without both, a text without subwords gets
            one padding token, so that no set is empty.
    """
    starts, ends = int(tokenizer.starts), int(tokenizer.ends)
    row_P, place_P = ragged(starts, size_B)
    size_B = np.maximum(size_B, 1 - starts - ends)
    token_BL = np.zeros((len(size_B), size_B.max(initial=0) + starts + ends), np.int64)
    token_BL[row_P, place_P] = subword_P
    if starts:
        token_BL[:, 0] = tokenizer.start
    if ends:
        token_BL[np.arange(len(size_B)), size_B + starts] = tokenizer.end
    mask_BL = np.arange(token_BL.shape[1]) < size_B[:, None] + starts + ends
    return torch.from_numpy(token_BL), torch.from_numpy(mask_BL)
