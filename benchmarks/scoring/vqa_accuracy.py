"""VQA's official accuracy of a whole validation split, against one question after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from benchmarks.measure import Measurement, Scale, Size, by_turns, processor_seconds
from polypool.tasks.questions.accuracy import (
    HumanAnswers,
    normalise,
    trim,
    with_digits,
    without_punctuation,
)


@dataclass(frozen=True, kw_only=True)
class AccuracySize(Size):
    """VQA 2.0's val2014 by default; the loop does `sample` questions of it."""

    quick: ClassVar = {"questions": 21_435, "different": 6_000, "sample": 2_000, "limit": 1.0}
    tiny: ClassVar = {"questions": 400, "different": 50, "sample": 100, "rounds": 1}
    questions: int = 214_354
    different: int = 60_000  # answers
    sample: int = 5_000
    limit: float = 10.0  # seconds


_PEOPLE = 10


def vqa_metric(scale: Scale = "full") -> list[Measurement]:
    """Measure the accuracy of random predictions by the rule of 2021."""
    size = AccuracySize.of(scale)
    predictions, answers = random_answers(size)
    sample = slice(size.sample)
    ours_S = HumanAnswers(answers[sample]).accuracy(predictions[sample], version="2021")
    np.testing.assert_allclose(ours_S, one_by_one(predictions[sample], answers[sample]), rtol=0, atol=1e-12)

    def ours(_: int) -> float:
        normalise.cache_clear()
        return processor_seconds(lambda: HumanAnswers(answers).accuracy(predictions, version="2021"))

    def reference(_: int) -> float:
        taken = processor_seconds(lambda: one_by_one(predictions[sample], answers[sample]))
        return taken * size.questions / size.sample

    times = by_turns(ours, reference, rounds=size.rounds)
    measured = (
        f"official accuracy of {size.questions:,} questions with {_PEOPLE} answers each, from raw strings"
    )
    return [
        Measurement(
            name="VQA accuracy",
            measured=measured,
            unit="s",
            target=5.0,
            note=f"Reference: a loop over questions and answers, measured on {size.sample:,} and scaled.",
            **times.numbers(invert=True),
        ),
        Measurement.of_two(
            float(np.median(times.ours_R)),
            size.limit,
            name="VQA accuracy: time",
            measured=measured,
            unit="s",
            target=1.0,
            note="Reference: the limit.",
        ),
    ]


def random_answers(size: AccuracySize) -> tuple[list[str], list[list[str]]]:
    """Return predictions and people's answers, a few frequent and many rare, as in VQA 2.0.

    The people of a question choose among four answers; every fifth question they answer alike.
    """
    rng = np.random.default_rng(0)
    endings = ("", "s", " and white", ", maybe", "-coat", " one", "!")
    words = np.array(
        [f"{'the ' * (n % 9 == 0)}word{n}{endings[n % len(endings)]}" for n in range(size.different)]
    )
    index_QK = (size.different ** rng.random((size.questions, 4))).astype(np.int64) - 1  # Zipf's law
    chosen_QP = rng.choice(4, (size.questions, _PEOPLE), p=[0.55, 0.25, 0.12, 0.08])
    chosen_QP[::5] = 0
    answers = words[np.take_along_axis(index_QK, chosen_QP, axis=1)].tolist()
    return words[index_QK[:, 0]].tolist(), answers


def one_by_one(predictions: list[str], answers: list[list[str]]) -> np.ndarray:
    """Return the accuracies by the rule as it is written, without anything kept from one question to the next."""
    return np.array([_accuracy(*pair) for pair in zip(predictions, answers, strict=True)])


def _accuracy(prediction: str, answers: list[str]) -> float:
    prediction, answers = trim(prediction), [trim(answer) for answer in answers]
    if len(set(answers)) > 1:
        answers = [with_digits(without_punctuation(answer)) for answer in answers]
        prediction = with_digits(without_punctuation(prediction))
    scores = []
    for left_out in range(len(answers)):
        others = [answer for number, answer in enumerate(answers) if number != left_out]
        scores.append(min(1, sum(answer == prediction for answer in others) / 3))
    return sum(scores) / len(scores)
