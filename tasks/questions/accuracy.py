"""Accuracy of answers: VQA's, by the rules of 2021 and of 2017, and the share of exact matches.

VQA's rule is made for ten answers a question:

    accuracy of a question = mean over its human answers of min(1, how many of the others equal the prediction / 3)

Three of the others suffice, however many there are, so the rule holds for more than ten answers, too. With fewer it
misleads: the best possible accuracy of a question with one answer is 0, with two 33 %, with three 67 %. Such questions
are scored by the share of their answers that equal the prediction: 1 or 0 for a single answer.

The rules differ in how answers are normalised:
- 2021: all are trimmed; if the human answers of a question are then all the same, prediction and answers are
  compared without normalisation, otherwise both are normalised. (So `Yes!` is wrong if all ten answers are `yes`.)
- 2017: predictions are always normalised; human answers only lose their punctuation, if they are not all the same.
  (So `the cat` is wrong even if the answers are `the cat`.)
- exact matches: all are normalised, as in the vocabulary of answers.

Source: Antol et al., "VQA: visual question answering", ICCV 2015, and its evaluation code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import numpy as np

_PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
_ANY_PUNCTUATION = re.compile(f"[{re.escape(_PUNCTUATION)}]")
_DIGITS_AND_COMMA = re.compile(r"\d,\d")
_PERIOD = re.compile(r"\.(?!\d)")
_PERIODS = 32  # maximum number removed: the official code passes a flag of `re` as the count
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
VQA_RULE, EXACT_MATCH = PROTOCOLS = ("vqa", "exact-match")
"""The protocols: VQA's accuracy, for ten answers a question or more, and the share of exact matches."""
ENOUGH = 10  # minimum answers of a question for VQA's rule
_FEWER = 0.01  # maximum share of a corpus's questions with fewer, because ingest omits damaged answers
_CACHED = 1 << 18  # answers; VQA 2.0 has about as many different ones


def _contractions() -> dict[str, str]:
    """Return the correction of each contraction that lacks an apostrophe.

    Every entry lacks exactly one apostrophe; a word that lacks two is not corrected. The last entry is an inconsistency
    of the official table.
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

    All occurrences of a mark are deleted if one of them is next to a space, and all marks are deleted if the answer has
    a comma between digits; other marks become spaces. Periods are deleted unless a digit follows.
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
    """Return the answer in the vocabulary's form: normalised, without commas."""
    return normalise(answer).replace(",", "")


def protocol_for(answers: Mapping[int, int]) -> str:
    """Return the protocol for questions: `vqa` if at least 99 % of them have ten answers or more.

    Args:
        answers: number of questions by number of answers; questions without answers are ignored.
    """
    asked = sum(count for number, count in answers.items() if number)
    few = sum(count for number, count in answers.items() if 0 < number < ENOUGH)
    return VQA_RULE if few <= _FEWER * asked else EXACT_MATCH


_GROUPS = {"yes/no": "yes_no", "number": "number", "other": "other"}
_NOT_IN_NAMES = re.compile(r"[^\w \-.:/]")


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """Normalisation of answers.

    People agree if their answers are equal after `alike`. These are then compared with the prediction after `guess`;
    otherwise human answers after `human` are compared with the normalised prediction.
    """

    alike: Callable[[str], str]
    guess: Callable[[str], str]
    human: Callable[[str], str]


def _normalised(answer: str) -> str:
    return normalise(trim(answer))


_RULES = {
    "2021": _Rule(alike=trim, guess=trim, human=_normalised),
    "2017": _Rule(alike=str, guess=_normalised, human=without_punctuation),
}


class HumanAnswers:
    """The human answers to some questions, prepared for scoring predictions.

    Args:
        answers: raw answers of each question; at least one.
    """

    def __init__(self, answers: Sequence[Sequence[str]]) -> None:
        self.count_Q = np.fromiter(map(len, answers), np.int64, len(answers))
        assert self.count_Q.all(), "without answers, the accuracy is not defined"
        self._raw = _Numbering()
        self._raw_A = self._raw.of(chain.from_iterable(answers), count=int(self.count_Q.sum()))
        self._start_Q = np.cumsum(self.count_Q) - self.count_Q

    def accuracy(self, predictions: Sequence[str], *, version: str = "2021") -> np.ndarray:
        """Return the accuracy of one prediction per question, `(Q,)` float64 in [0, 1]."""
        rule, names, raw = _RULES[version], _Numbering(), _Numbering()
        alike_A = names.of(map(rule.alike, self._raw))[self._raw_A]
        same_Q = np.logical_and.reduceat(alike_A == self._spread(alike_A[self._start_Q]), self._start_Q)
        human_A = names.of(map(rule.human, self._raw))[self._raw_A]
        human_A = np.where(self._spread(same_Q), alike_A, human_A)
        raw_Q = raw.of(predictions)
        predicted_Q = np.where(
            same_Q,
            names.of(map(rule.guess, raw))[raw_Q],
            names.of(map(_normalised, raw))[raw_Q],
        )
        match_Q = self._matches(human_A, predicted_Q)
        # a matching answer has one match fewer among the others
        equal_Q = match_Q * np.clip(match_Q - 1, 0, 3)
        other_Q = (self.count_Q - match_Q) * np.clip(match_Q, 0, 3)
        return (equal_Q + other_Q) / (3 * self.count_Q)

    def exact_match(self, predictions: Sequence[str]) -> np.ndarray:
        """Return the share of each question's answers that equal its prediction, `(Q,)` float64 from 0 to 1."""
        names = _Numbering()
        human_A = names.of(map(vocabulary_answer, self._raw))[self._raw_A]
        predicted_Q = names.of(map(vocabulary_answer, predictions))
        return self._matches(human_A, predicted_Q) / self.count_Q

    def _matches(self, human_A: np.ndarray, predicted_Q: np.ndarray) -> np.ndarray:
        """Return the number of human answers equal to each prediction, by the numbers of their normalised forms."""
        return np.add.reduceat(human_A == self._spread(predicted_Q), self._start_Q, dtype=np.int64)

    def _spread(self, value_Q: np.ndarray) -> np.ndarray:
        return np.repeat(value_Q, self.count_Q)


class _Numbering(dict[str, int]):
    """Ids of strings: 0, 1, ... in order of first occurrence."""

    def of(self, strings: Iterable[str], *, count: int = -1) -> np.ndarray:
        """Return the strings' numbers, int64."""
        return np.fromiter((self.setdefault(string, len(self)) for string in strings), np.int64, count)


def accuracy_by_group(
    accuracy_Q: np.ndarray, *, answer_types: Sequence[str] = (), question_types: Sequence[str] = ()
) -> dict[str, float]:
    """Return the mean accuracy in per cent: `accuracy`, `yes_no`, `number`, `other`, and `type/<question type>`.

    Another answer type `x` is named `answer/x`; an empty type belongs to no group. Characters that MLflow does not
    allow in names become `_`.

    Args:
        accuracy_Q: `(Q,)`, in [0, 1].
        answer_types: of each question; optional.
        question_types: of each question; optional.
    """
    groups = [_GROUPS.get(kind, kind and f"answer/{kind}") for kind in answer_types]
    kinds = [kind and f"type/{kind}" for kind in question_types]
    return {
        "accuracy": 100 * float(np.mean(accuracy_Q)),
        **_means(accuracy_Q, groups),
        **_means(accuracy_Q, kinds),
    }


def _means(accuracy_Q: np.ndarray, names: Sequence[str]) -> dict[str, float]:
    if not names:
        return {}
    numbering = _Numbering()
    group_Q = numbering.of(_NOT_IN_NAMES.sub("_", name) for name in names)
    sums, counts = np.bincount(group_Q, accuracy_Q), np.bincount(group_Q)
    return {
        name: 100 * float(sums[number] / counts[number]) for name, number in sorted(numbering.items()) if name
    }
