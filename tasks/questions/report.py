"""Evaluation of the answers to the questions of a split: metrics, results for each question, and a page to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from infra.errors import InputError
from tasks.base import Evaluation, Metric, PictureRecord, QueryMean, QueryMetric
from tasks.datasets.media import PicturedItem, pictured
from tasks.datasets.questions import Question, QuestionCorpus
from tasks.questions.accuracy import HumanAnswers, global_pool
from tasks.questions.priors import AnswerPrior
from tasks.questions.results import results_file
from tasks.questions.vocabulary import AnswerVocabulary
from tasks.scoring.examples import choose

PROTOCOL = "vqa"
VERSION = 1
"""Of the protocol; raised whenever the same answers would get another accuracy."""
ACCURACY = Metric(name="accuracy", best=100.0, unit="%")
_IN_TABLES = ("yes_no", "number", "other", "accuracy_2017", "prior_accuracy")
_EXAMPLES = 40  # on the page


@dataclass(frozen=True, kw_only=True)
class AnswerExample:
    """One question and its answers.

    Attributes:
        id: of the question.
        question: its text.
        kind: its type, such as "what color".
        answers: what people said; empty where nobody was asked.
        prediction: what the model says.
        confidence: its probability, 0 to 1.
        accuracy: the official one, 0 to 1; None where nobody was asked.
        image: that the question is about.
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
        questions: how many it has.
        accuracy: of all, in per cent; None where nobody was asked.
        examples: those to look at.
    """

    split: str
    questions: int
    accuracy: float | None
    examples: tuple[AnswerExample, ...]


class Report:
    """Evaluates answers to the questions of a split.

    Args:
        corpus: of questions and images.
        split: whose questions are answered, all of them, in order.
        prior: what can be answered without a look at the image, from training questions.
        vocabulary: the answers that a model chooses from.

    Raises:
        InputError: some questions have answers and some have none.
    """

    def __init__(
        self,
        corpus: QuestionCorpus,
        *,
        split: str,
        prior: AnswerPrior,
        vocabulary: AnswerVocabulary,
    ) -> None:
        self.corpus, self.split, self.prior, self.vocabulary = corpus, split, prior, vocabulary
        self.questions = questions = corpus.questions(split)
        self.people = HumanAnswers([q.answers for q in questions]) if answered(questions, split) else None

    @cached_property
    def chance(self) -> float:
        """Accuracy of the training split's most frequent answer, per cent."""
        texts = [q.question for q in self.questions]
        return 100 * float(self.people.accuracy(self.prior.chance(texts)).mean())

    @cached_property
    def baselines(self) -> dict[str, float]:
        """Accuracy of the most frequent answers to alike questions, and the questions whose label is a choice, in %."""
        texts = [q.question for q in self.questions]
        return {
            "prior_accuracy": 100 * float(self.people.accuracy(self.prior.predict(texts)).mean()),
            "coverage": 100 * self.vocabulary.coverage(q.label for q in self.questions),
        }

    def evaluation(self, best_Q: np.ndarray, confidence_Q: np.ndarray, *, files: bool = True) -> Evaluation:
        """Return metrics in per cent, where people answered, and what the model says to each question.

        Args:
            best_Q: the number of the answer that it gives to each.
            confidence_Q: the probability that it gives it.
            files: make the results file, and be ready to make the page, too.
        """
        predictions = [self.vocabulary.answers[best] for best in best_Q.tolist()]
        metrics, accuracy_Q = {"questions": float(len(predictions))}, None
        if self.people is not None:
            accuracy_Q = self.people.accuracy(predictions)
            metrics = self._metrics(accuracy_Q, predictions)
        per_query = {
            "question_id": np.array([q.id for q in self.questions]),
            "image_id": np.array([q.image_id for q in self.questions]),
            "prediction": np.array(predictions),
            "confidence": confidence_Q,
        }
        known = {} if accuracy_Q is None else {"accuracy": accuracy_Q}
        return Evaluation(
            protocol=PROTOCOL,
            protocol_version=VERSION,
            metrics=metrics,
            **self._described(metrics),
            per_query=per_query | known,
            files=self._files(predictions) if files else {},
            pictures=(partial(self._pictures, predictions, confidence_Q, accuracy_Q),) if files else (),
        )

    def _metrics(self, accuracy_Q: np.ndarray, predictions: list[str]) -> dict[str, float]:
        means = global_pool(
            accuracy_Q,
            answer_types=[q.answer_type for q in self.questions],
            question_types=[q.question_type for q in self.questions],
        )
        older = 100 * float(self.people.accuracy(predictions, version="2017").mean())
        return {"accuracy": means.pop("accuracy"), "accuracy_2017": older, **self.baselines, **means}

    def _described(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """Return what the metrics mean, and that the accuracy is a mean over questions, by the evaluation's fields."""
        if self.people is None:
            return {"primary": ACCURACY}
        counted = [name for name in metrics if name != ACCURACY.name]
        listed = [name for name in _IN_TABLES if name in counted]
        others = [replace(ACCURACY, name=name) for name in listed]
        others += [replace(ACCURACY, name=name, in_tables=False) for name in counted if name not in listed]
        mean = QueryMean(scores=("accuracy",), units="image_id", factor=100.0)
        return {
            "primary": replace(ACCURACY, chance=self.chance),
            "others": tuple(others),
            "query_metrics": (
                QueryMetric(name=ACCURACY.name, means=(mean,), units="images with their questions"),
            ),
        }

    def _files(self, predictions: list[str]) -> dict[str, bytes]:
        return {f"vqa_{self.split}_results.json": results_file([q.id for q in self.questions], predictions)}

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
    """Return whether people's answers to the questions of a split are there.

    Raises:
        InputError: those to some are there, and those to others are not.
    """
    without = [question.id for question in questions if not question.answers]
    if 0 < len(without) < len(questions):
        raise InputError(
            f"{len(without):,} of {len(questions):,} questions of the split {split!r} have no answers, the first is "
            f"{without[0]}; ingest it again with the annotations of all"
        )
    return not without
