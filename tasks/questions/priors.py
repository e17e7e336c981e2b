"""Baselines of visual question answering that do not read the image: the most frequent answers.

Source: Antol et al., "VQA: visual question answering", ICCV 2015 (the priors of all questions and per question type);
here a question's type is its first two words, which need no annotation.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from infra.errors import InputError

_WORDS = 2
_MARKS = str.maketrans("", "", ",?")


class AnswerPrior:
    """The most frequent training answers: of all questions, and of those that begin with the same two words.

    Of answers that are equally frequent, the first in the alphabet is taken.

    Args:
        questions: of the training split.
        labels: the answer of each.

    Raises:
        InputError: there are none, or not one label for each question.
    """

    def __init__(self, questions: Sequence[str], labels: Sequence[str]) -> None:
        if not questions or len(questions) != len(labels):
            raise InputError(
                f"{len(questions):,} training questions and {len(labels):,} answers: expected some, and one for each"
            )
        by_words: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        for question, label in zip(questions, labels, strict=True):
            by_words[first_words(question)][label] += 1
        self.most_frequent = _most_frequent(Counter(labels))
        self._by_words = {words: _most_frequent(counts) for words, counts in by_words.items()}

    def chance(self, questions: Sequence[str]) -> list[str]:
        """Return the most frequent answer for each question."""
        return [self.most_frequent] * len(questions)

    def predict(self, questions: Sequence[str]) -> list[str]:
        """Return the most frequent answer to each question's first two words, or of all where these are new."""
        return [self._by_words.get(first_words(question), self.most_frequent) for question in questions]


def first_words(question: str) -> tuple[str, ...]:
    """Return the first two words, in lower case, without commas and question marks."""
    return tuple(question.lower().translate(_MARKS).split()[:_WORDS])


def _most_frequent(counts: Counter[str]) -> str:
    return min(counts, key=lambda answer: (-counts[answer], answer))
