"""The answer vocabulary of a classifier, and the targets of each question.

Source: the code of the reproduction of Anderson et al., "Bottom-up and top-down attention for image captioning and
visual question answering", CVPR 2018, from which most VQA models take vocabulary and targets. Labels there are in the
order of a Python 2 dictionary; here they are sorted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from polypool.infra.errors import InputError
from polypool.infra.fields import at_least, require
from polypool.infra.ragged import ragged
from polypool.tasks.datasets.corpus import Question, QuestionCorpus
from polypool.tasks.questions.accuracy import EXACT_MATCH, vocabulary_answer

# The splits of a corpus whose answers become classes, by name; in a corpus of VQA 2.0, `test` is the official
# validation split, and `val` a part of the official training split.
ANSWERS = {"train+val": ("train", "val", "test"), "train": ("train",)}
TARGETS = ("soft", "hard")
_SCORES = np.array([0, 0.3, 0.6, 0.9, 1], np.float32)  # target of an answer of 0, 1, 2, 3, 4 or more people


class AnswerVocabulary:
    """The answers with a class in a classifier, in its order.

    Args:
        answers: unique answers, at least one; `build` counts them.
    """

    def __init__(self, answers: Sequence[str]) -> None:
        self.answers = tuple(answers)
        self._index = {answer: number for number, answer in enumerate(self.answers)}

    @classmethod
    def of(cls, corpus: QuestionCorpus, source: str, *, min_count: int) -> AnswerVocabulary:
        """Return the frequent answers of a corpus; `source` is one of `ANSWERS`."""
        splits = [split for split in ANSWERS[source] if split in corpus.splits]
        labels = [question.label for split in splits for question in corpus.questions(split)]
        return cls.build(filter(None, labels), min_count=min_count)

    @classmethod
    def build(cls, labels: Iterable[str], *, min_count: int = 9) -> AnswerVocabulary:
        """Return the answers that are the label of at least `min_count` questions, normalised, sorted.

        Args:
            labels: of each question, the answer that most people gave (`multiple_choice_answer`), raw.
            min_count: 9 gives the usual 3,129 answers for VQA 2.0's train and val.

        Raises:
            InputError: `min_count` is below 1, or no answer is that frequent.
        """
        require(at_least(1), min_count=min_count)
        raw_counts = Counter(labels)
        counts = Counter[str]()
        for label, count in raw_counts.items():
            counts[vocabulary_answer(label)] += count
        frequent = sorted(answer for answer, count in counts.items() if count >= min_count)
        if not frequent:
            most = counts.most_common(1)
            hint = (
                f"the most frequent, {most[0][0]!r}, of {most[0][1]:,}" if most else "there are no questions"
            )
            raise InputError(
                f"no answer to {min_count} questions or more ({hint}); lower min_count, or give more questions"
            )
        return cls(frequent)

    def __len__(self) -> int:
        return len(self.answers)

    def indices(self, answers: Iterable[str]) -> np.ndarray:
        """Return the class of each literal answer, -1 for none; int64."""
        return np.fromiter((self._index.get(answer, -1) for answer in answers), np.int64)

    def coverage(self, labels: Iterable[str]) -> float:
        """Return the fraction of questions with a label in the vocabulary, from 0 to 1; 0 without questions."""
        index_Q = self.indices(map(vocabulary_answer, labels))
        return float(np.mean(index_Q >= 0)) if len(index_Q) else 0.0

    def targets(self, questions: Sequence[Question], kind: str, *, protocol: str) -> AnswerTargets:
        """Return the targets of answered questions; `kind` is one of `TARGETS`, soft ones follow the protocol."""
        if kind == "hard":
            return self.hard_targets([question.label for question in questions])
        answers = [question.answers for question in questions]
        return self.share_targets(answers) if protocol == EXACT_MATCH else self.soft_targets(answers)

    def soft_targets(self, answers: Sequence[Sequence[str]]) -> AnswerTargets:
        """Return targets of 0.3, 0.6 and 0.9 for answers given by one, two and three people, 1 for more people.

        Only raw answers that are literally in the vocabulary count; a question may have no target above 0.

        Args:
            answers: human answers to each question.
        """
        flat_N, people_N, _ = self._counted(answers, chain.from_iterable(answers))
        return self._targets(flat_N, _SCORES[np.minimum(people_N, len(_SCORES) - 1)], questions=len(answers))

    def share_targets(self, answers: Sequence[Sequence[str]]) -> AnswerTargets:
        """Return each normalised answer's share of the question's answers as target; none for answers without a class.

        Args:
            answers: human answers to each question.
        """
        flat_N, people_N, count_Q = self._counted(
            answers, map(vocabulary_answer, chain.from_iterable(answers))
        )
        share_N = (people_N / count_Q[flat_N // len(self)]).astype(np.float32)
        return self._targets(flat_N, share_N, questions=len(answers))

    def _counted(
        self, answers: Sequence[Sequence[str]], spelled: Iterable[str]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Count the people who gave each answer to each question.

        Returns:
            pairs of question and class `(N,)`, as `question * classes + class`; the number of people of each pair
            `(N,)`; and the number of answers of each question `(Q,)`, including answers without a class.
        """
        count_Q = np.fromiter(map(len, answers), np.int64, len(answers))
        index_A = self.indices(spelled)
        row_A = np.repeat(np.arange(len(answers)), count_Q)[index_A >= 0]
        flat_N, people_N = np.unique(row_A * len(self) + index_A[index_A >= 0], return_counts=True)
        return flat_N, people_N, count_Q

    def hard_targets(self, labels: Sequence[str]) -> AnswerTargets:
        """Return targets of 1 for each question's normalised label; none for labels without a class."""
        index_Q = self.indices(map(vocabulary_answer, labels))
        row_N = np.flatnonzero(index_Q >= 0)
        flat_N = row_N * len(self) + index_Q[row_N]
        return self._targets(flat_N, np.ones(len(flat_N), np.float32), questions=len(labels))

    def _targets(self, flat_N: np.ndarray, score_N: np.ndarray, *, questions: int) -> AnswerTargets:
        row_N, answer_N = np.divmod(flat_N, len(self))
        end_Q = np.cumsum(np.bincount(row_N, minlength=questions))
        return AnswerTargets(
            start_Q1=np.concatenate([[0], end_Q]).astype(np.int64),
            answer_N=answer_N.astype(np.int32),
            score_N=score_N,
            width=len(self),
        )


@dataclass(frozen=True, kw_only=True)
class AnswerTargets:
    """The nonzero targets of all questions in flat arrays; a dense matrix would take gigabytes.

    Args:
        start_Q1: `(Q + 1,)` offsets of the questions.
        answer_N: `(N,)` classes.
        score_N: `(N,)` float32, above 0 and at most 1.
        width: number of classes.
    """

    start_Q1: np.ndarray
    answer_N: np.ndarray
    score_N: np.ndarray
    width: int

    def batch(self, index_B: np.ndarray) -> Tensor:
        """Return the targets of some questions, `(B, A)` float32."""
        start_B = self.start_Q1[index_B]
        count_B = self.start_Q1[np.asarray(index_B) + 1] - start_B
        row_N, place_N = ragged(start_B, count_B)
        target_BA = np.zeros((len(count_B), self.width), np.float32)
        target_BA[row_N, self.answer_N[place_N]] = self.score_N[place_N]
        return torch.from_numpy(target_BA)
