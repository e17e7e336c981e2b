"""Words and their numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

SPECIALS = ("<pad>", "<start>", "<end>", "<unk>", "<mask>")
_WORD = re.compile(r"\w+(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b|\w+(?:[-.&/]\w+)*|[^\w\s]")


def split_words(caption: str) -> list[str]:
    """Lower-case a caption and split it as the Penn Treebank does: clitics and punctuation stand alone."""
    return _WORD.findall(caption.lower())


def count_words(captions: Iterable[str], *, min_count: int) -> list[str]:
    """Return the words that occur at least `min_count` times, the most frequent first, ties by spelling."""
    counts = Counter(word for caption in captions for word in split_words(caption))
    kept = [word for word, count in counts.items() if count >= min_count]
    return sorted(kept, key=lambda word: (-counts[word], word))


class Vocabulary:
    """A word-level tokenizer.

    Args:
        words: the words beside the special ones, in the order of their numbers.
        ends: put `<start>` and `<end>` around captions.
    """

    start, end, unknown, mask = (SPECIALS.index(name) for name in ("<start>", "<end>", "<unk>", "<mask>"))

    def __init__(self, words: Sequence[str], *, ends: bool = True) -> None:
        self.words = (*SPECIALS, *words)
        self.ends = ends
        self.size = len(self.words)
        self._number = {word: number for number, word in enumerate(self.words)}

    def split(self, caption: str) -> list[str]:
        """Return a caption's words as strings, those that `encode` numbers."""
        return split_words(caption)

    def encode(self, captions: Sequence[str]) -> Iterator[list[list[int]]]:
        """Yield each caption's words, every word one piece; unknown words become `<unk>`."""
        for caption in captions:
            yield [[self._number.get(word, self.unknown)] for word in self.split(caption)]
