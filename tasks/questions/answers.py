"""How answers are brought into one form before they are compared: VQA's rules, and those of a baseline's vocabulary.

The rules are those of the official evaluation, whose string steps have been the same in all of its versions; which
answers they are applied to has changed (`tasks.questions.accuracy`). Where the official code does something else than
it seems to mean, what it does counts, since published numbers come from it.

Source: Antol et al., "VQA: visual question answering", ICCV 2015, and its evaluation code; Teney et al., "Tips and
tricks for visual question answering", CVPR 2018, and the code of its reproduction (the vocabulary).
"""

from __future__ import annotations

import re
from functools import lru_cache

_PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
_ANY_PUNCTUATION = re.compile(f"[{re.escape(_PUNCTUATION)}]")
_DIGITS_AND_COMMA = re.compile(r"\d,\d")
_PERIOD = re.compile(r"\.(?!\d)")
_PERIODS = 32  # so many are removed at most: the official code hands a flag over as the count
_DIGITS = "zero one two three four five six seven eight nine ten"
_NUMBERS = {"none": "0"} | {word: str(number) for number, word in enumerate(_DIGITS.split())}
_ARTICLES = {"a", "an", "the"}
_CONTRACTED = {
    "n't": "ai are ca could did does do had has have is might must need ought sha should was were wo would",
    "n't've": "could had might should would",
    "'d": "he how it someone something there they where who you",
    "'d've": "he it she somebody someone something there they we who y'all you",
    "'ll": "how it somebody someone something they what who why y'all you",
    "'re": "there they what why you",
    "'s": "he how somebody someone that there what when where who why",
    "'ve": "could might must not should they we what where who would you",
    "": "ma'am o'clock 'ow's'at 'twas y'all",
}
_CACHED = 1 << 18  # answers; VQA 2.0 has about as many different ones


def _contractions() -> dict[str, str]:
    """Return what each contraction that lacks an apostrophe is corrected to.

    Every entry lacks exactly one, whichever of several; a word that lacks two stays as it is. The last entry has no
    reason, but stands in the official table.
    """
    table = {}
    for ending, words in _CONTRACTED.items():
        for whole in (word + ending for word in words.split()):
            for at in (at for at, char in enumerate(whole) if char == "'"):
                table[whole[:at] + whole[at + 1 :]] = whole
    return table | {"somebody'd": "somebodyd"}


_CONTRACTIONS = _contractions()


def trim(answer: str) -> str:
    """Return the answer with line breaks and tabs as spaces, and without white space at its ends."""
    return answer.replace("\n", " ").replace("\t", " ").strip()


def without_punctuation(answer: str) -> str:
    """Return the answer without punctuation: the first step.

    A mark is deleted where it stands next to a space somewhere in the answer, and every mark is where a comma stands
    between digits; otherwise it becomes a space. Periods are deleted unless a digit follows.
    """
    if _ANY_PUNCTUATION.search(answer):
        everywhere, becomes = _DIGITS_AND_COMMA.search(answer), {}
        for mark in _PUNCTUATION:
            beside = f"{mark} " in answer or f" {mark}" in answer
            becomes[ord(mark)] = None if everywhere or beside else " "
        answer = answer.translate(becomes)
    return _PERIOD.sub("", answer, count=_PERIODS)


def with_digits(answer: str) -> str:
    """Return the answer in lower case, number words as digits, articles left out, apostrophes restored: step two.

    `none` is 0. White space becomes single spaces.
    """
    words = (_NUMBERS.get(word, word) for word in answer.lower().split())
    return " ".join(_CONTRACTIONS.get(word, word) for word in words if word not in _ARTICLES)


@lru_cache(maxsize=_CACHED)
def normalise(answer: str) -> str:
    """Return the answer after both steps."""
    return with_digits(without_punctuation(answer))


def vocabulary_answer(answer: str) -> str:
    """Return the answer as the vocabulary of answers knows it: normalised, without commas."""
    return normalise(answer).replace(",", "")
