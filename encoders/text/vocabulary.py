"""Words and their numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from encoders.text.treebank import split_treebank
from infra.errors import unknown

SPECIALS = ("<pad>", "<start>", "<end>", "<unk>", "<mask>")
_WORD = re.compile(r"\w+(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b|\w+(?:[-.&/]\w+)*|[^\w\s]")


def split_words(caption: str) -> list[str]:
    """Lower-case a caption and split it much as `split_treebank` does: clitics and punctuation stand alone.

    Quotes stay as they are, `cannot` is one word and `5:50` three, in which 0.3 % of COCO's captions differ.
    """
    return _WORD.findall(caption.lower())


def split_question(question: str) -> list[str]:
    """Lower-case a question, drop commas and question marks, set `'s` apart and split at white space.

    So do the bottom-up-attention baseline of visual question answering and what descends from it.
    """
    return question.lower().replace(",", "").replace("?", "").replace("'s", " 's").split()


SPLITS: dict[str, Callable[[str], list[str]]] = {
    "captions": split_words,
    "questions": split_question,
    "treebank": split_treebank,
}
"""Ways to split a text into words, by the name that an encoder's spec calls them."""


def count_words(captions: Iterable[str], *, min_count: int, split: str = "captions") -> list[str]:
    """Return the words that occur at least `min_count` times, the most frequent first, ties by spelling.

    Raises:
        InputError: `split` is no way to split.
    """
    if split not in SPLITS:
        raise unknown("way to split a text:", split, SPLITS)
    counts = Counter(word for caption in captions for word in SPLITS[split](caption))
    frequent = [word for word, count in counts.items() if count >= min_count]
    return sorted(frequent, key=lambda word: (-counts[word], word))


class Vocabulary:
    """A word-level tokenizer.

    Args:
        words: the words beside the special ones, in the order of their numbers.
        ends: put `<start>` and `<end>` around captions.
        split: how a text is split into words, a key of `SPLITS`.
    """

    start, end, unknown, mask = (SPECIALS.index(name) for name in ("<start>", "<end>", "<unk>", "<mask>"))

    def __init__(self, words: Sequence[str], *, ends: bool = True, split: str = "captions") -> None:
        self.words = (*SPECIALS, *words)
        self.ends = ends
        self._split = SPLITS[split]
        self.size = len(self.words)
        self._number = {word: number for number, word in enumerate(self.words)}

    def split(self, caption: str) -> list[str]:
        """Return a caption's words as strings, those that `encode` numbers."""
        return self._split(caption)

    def encode(self, captions: Sequence[str]) -> Iterator[list[list[int]]]:
        """Yield each caption's words, every word one subword; unknown words become `<unk>`."""
        for caption in captions:
            yield [[self._number.get(word, self.unknown)] for word in self.split(caption)]

    def subwords(self, numbers: Sequence[int]) -> list[str]:
        """Return the word of each number; those that were unknown are `<unk>`."""
        return [self.words[number] for number in numbers]
