"""Evaluation of answers to the questions of a split: metrics, baselines, per-question results, examples.

The chance level is the accuracy of the most frequent training answer to a question's type, without the image (Antol et
al., "VQA: visual question answering", ICCV 2015: the prior per question type); here the type is the first two words,
which needs no annotation.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from polypool.infra.compute.dist import rank
from polypool.infra.errors import InputError
from polypool.tasks.adapter import Evaluation, Metric, PictureRecord, QueryMean, QueryMetric
from polypool.tasks.datasets.corpus import PicturedItem, Question, QuestionCorpus, pictured
from polypool.tasks.questions.accuracy import VQA_RULE, HumanAnswers, accuracy_by_group
from polypool.tasks.questions.vocabulary import AnswerVocabulary
from polypool.tasks.scoring.examples import choose

VERSION = 1  # of the protocols; incremented whenever the same answers would get another accuracy
ACCURACY = Metric(name="accuracy", best=100.0, unit="%")
_IN_TABLES = ("yes_no", "number", "other", "accuracy_2017", "prior_accuracy")
_EXAMPLES = 40  # on the page
_MARKS = str.maketrans("", "", ",?")


class AnswerPrior:
    """The most frequent training answers: of all questions, and of questions with the same first two words.

    Ties are broken alphabetically.

    Args:
        questions: of the training split.
        labels: the answer of each.
    """

    def __init__(self, questions: Sequence[str], labels: Sequence[str]) -> None:
        by_words: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        for question, label in zip(questions, labels, strict=True):
            by_words[first_words(question)][label] += 1
        self.most_frequent = _most_frequent(Counter(labels))
        self._by_words = {words: _most_frequent(counts) for words, counts in by_words.items()}

    def predict(self, questions: Sequence[str]) -> list[str]:
        """Return the most frequent answer to each question's first two words, or of all if these are new."""
        return [self._by_words.get(first_words(question), self.most_frequent) for question in questions]


def first_words(question: str) -> tuple[str, ...]:
    """Return the first two words, in lower case, without commas and question marks."""
    return tuple(question.lower().translate(_MARKS).split()[:2])


def _most_frequent(counts: Counter[str]) -> str:
    return min(counts, key=lambda answer: (-counts[answer], answer))


@dataclass(frozen=True, kw_only=True)
class AnswerExample:
    """One question and its answers.

    Attributes:
        id: of the question.
        question: its text.
        kind: its type, such as "what color".
        answers: the human answers; empty if unknown.
        prediction: the model's answer.
        confidence: its probability, 0 to 1.
        accuracy: by the protocol, 0 to 1; None if no answers are known.
        image: the image of the question.
    """

    id: str
    question: str
    kind: str
    answers: tuple[str, ...]
    prediction: str
    confidence: float
    accuracy: float | None
    image: PicturedItem


@dataclass(frozen=True, kw_only=True)
class AnswerExamples(PictureRecord):
    """Questions of a split, rightly and wrongly answered ones in turn.

    Attributes:
        split: its name.
        questions: number of questions in the split.
        accuracy: mean over the split, in per cent; None if no answers are known.
        examples: the questions to show.
    """

    split: str
    questions: int
    accuracy: float | None
    examples: tuple[AnswerExample, ...]


class Report:
    """Evaluates answers to the questions of a split.

    Args:
        corpus: of questions and images.
        split: the split; all its questions are answered, in order.
        vocabulary: the candidate answers.
        protocol: `vqa` or `exact-match`.

    Raises:
        InputError: only some questions have answers.
    """

    def __init__(
        self, corpus: QuestionCorpus, *, split: str, vocabulary: AnswerVocabulary, protocol: str
    ) -> None:
        self.corpus, self.split, self.vocabulary, self.protocol = corpus, split, vocabulary, protocol
        self.questions = questions = corpus.questions(split)
        self.people = HumanAnswers([q.answers for q in questions]) if answered(questions, split) else None

    def accuracy(self, predictions: Sequence[str]) -> np.ndarray:
        """Return the accuracy of one answer a question by the protocol, `(Q,)`, from 0 to 1."""
        assert self.people is not None
        by = self.people.accuracy if self.protocol == VQA_RULE else self.people.exact_match
        return by(predictions)

    @cached_property
    def baselines(self) -> dict[str, float]:
        """Accuracy of the answer prior, if training answers are known, and coverage of the labels, in %."""
        coverage = {"coverage": 100 * self.vocabulary.coverage(q.label for q in self.questions)}
        train = self.corpus.questions("train") if self.corpus.splits.get("train") else []
        if not (train := [q for q in train if q.answers]):
            return coverage
        prior = AnswerPrior([q.question for q in train], [q.label for q in train])
        predictions = prior.predict([q.question for q in self.questions])
        return {"prior_accuracy": 100 * float(self.accuracy(predictions).mean())} | coverage

    def evaluate(self, best_Q: np.ndarray, confidence_Q: np.ndarray) -> Evaluation:
        """Return metrics in per cent, if answers are known, and the answer to each question.

        Args:
            best_Q: index of the most probable answer to each question.
            confidence_Q: its probability.
        """
        predictions = [self.vocabulary.answers[best] for best in best_Q.tolist()]
        found: dict[str, Any] = {"metrics": {"questions": float(len(predictions))}, "primary": ACCURACY}
        per_query = {
            "question_id": np.array([q.id for q in self.questions]),
            "image_id": np.array([q.image_id for q in self.questions]),
            "prediction": np.array(predictions),
            "confidence": confidence_Q,
        }
        accuracy_Q = None
        if self.people is not None:
            accuracy_Q = per_query["accuracy"] = self.accuracy(predictions)
            found = self._measured(accuracy_Q, predictions)
        if rank() == 0:
            if self.people is None:
                ids = [q.id for q in self.questions]
                found["files"] = {f"vqa_{self.split}_results.json": results_file(ids, predictions)}
            found["pictures"] = (partial(self._pictures, predictions, confidence_Q, accuracy_Q),)
        return Evaluation(protocol=self.protocol, protocol_version=VERSION, per_query=per_query, **found)

    def _measured(self, accuracy_Q: np.ndarray, predictions: list[str]) -> dict[str, Any]:
        """Return the metrics and their descriptions, by the evaluation's fields."""
        assert self.people is not None
        metrics = accuracy_by_group(
            accuracy_Q,
            answer_types=[q.answer_type for q in self.questions],
            question_types=[q.question_type for q in self.questions],
        )
        primary = replace(ACCURACY, chance=self.baselines.get("prior_accuracy", math.nan))
        others = {**self.baselines, **metrics}
        if self.protocol == VQA_RULE:
            older = self.people.accuracy(predictions, version="2017")
            others["accuracy_2017"] = 100 * float(older.mean())
        metrics = {ACCURACY.name: others.pop(ACCURACY.name), **others}
        order = sorted(others, key=lambda name: _IN_TABLES.index(name) if name in _IN_TABLES else len(others))
        mean = QueryMean(scores=("accuracy",), units="image_id", factor=100.0)
        return {
            "metrics": metrics,
            "primary": primary,
            "others": tuple(replace(ACCURACY, name=name, in_tables=name in _IN_TABLES) for name in order),
            "query_metrics": (
                QueryMetric(name=ACCURACY.name, means=(mean,), units="images with their questions"),
            ),
        }

    def _pictures(
        self, predictions: list[str], confidence_Q: np.ndarray, accuracy_Q: np.ndarray | None
    ) -> AnswerExamples:
        right_Q = np.zeros(len(predictions), bool) if accuracy_Q is None else accuracy_Q >= 0.5
        chosen = choose(right_Q, count=_EXAMPLES, type_Q=[q.question_type for q in self.questions])
        examples = [
            AnswerExample(
                id=question.id,
                question=question.question,
                kind=question.question_type,
                answers=tuple(question.answers),
                prediction=predictions[number],
                confidence=float(confidence_Q[number]),
                accuracy=None if accuracy_Q is None else float(accuracy_Q[number]),
                image=pictured(self.corpus, question),
            )
            for number, question in ((number, self.questions[number]) for number in chosen)
        ]
        return AnswerExamples(
            split=self.split,
            questions=len(predictions),
            accuracy=None if accuracy_Q is None else 100 * float(accuracy_Q.mean()),
            examples=tuple(examples),
        )


def answered(questions: Sequence[Question], split: str) -> bool:
    """Whether human answers to the questions of a split are known.

    Raises:
        InputError: only some questions have answers.
    """
    without = [question.id for question in questions if not question.answers]
    if 0 < len(without) < len(questions):
        raise InputError(
            f"{len(without):,} of {len(questions):,} questions of the split {split!r} have no answers, the first is "
            f"{without[0]}; ingest it again with the annotations of all"
        )
    return not without


def check_answered(corpus: QuestionCorpus, splits: Sequence[str]) -> None:
    """Check that a corpus has the answers that training and the choice of epochs need.

    Args:
        corpus: of questions.
        splits: splits that a run reads.

    Raises:
        InputError: `train` or `val` lacks answers.
    """
    for split in splits:
        if not answered(corpus.questions(split), split) and split != "test":
            raise InputError(
                f"{corpus.folder}: the questions of the split {split!r} have no answers, and training needs "
                "them; ingest it again with the annotations"
            )


def results_file(ids: Sequence[str], answers: Sequence[str]) -> bytes:
    """Return the file for VQA's evaluation server: `[{"question_id": 1, "answer": "yes"}, ...]`.

    Args:
        ids: of the questions of a whole split, in order; ids that are not whole numbers stay text.
        answers: one for each.
    """
    numbers = (int(id) if id.isascii() and id.isdecimal() else id for id in ids)
    rows = zip(numbers, answers, strict=True)
    return json.dumps([{"question_id": id, "answer": answer} for id, answer in rows]).encode()
