"""Visual question answering: VQA 2.0, and other corpora of questions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from polypool.infra.compute.cost import CostMeter
from polypool.infra.compute.device import device_of
from polypool.infra.errors import InputError, unknown
from polypool.infra.fields import from_plain, one_of, require
from polypool.infra.registry import TASKS
from polypool.tasks.abilities import Answers, Chunked, PartialLoss
from polypool.tasks.adapter import Evaluation, Score
from polypool.tasks.corpus_task import CorpusTask
from polypool.tasks.datasets.corpus import QuestionCorpus
from polypool.tasks.inputs.pairs import QuestionData, question_data
from polypool.tasks.inputs.visuals import FEATURES
from polypool.tasks.models.parts import Parts
from polypool.tasks.questions.accuracy import EXACT_MATCH, PROTOCOLS, VQA_RULE, protocol_for
from polypool.tasks.questions.answer_report import ACCURACY, Report, answered, check_answered
from polypool.tasks.questions.vocabulary import ANSWERS, TARGETS, AnswerVocabulary
from polypool.tasks.questions.vqa_model import (
    AnswerScores,
    VQAModel,
    answer_loss,
    answer_passes,
    best_answers,
    vqa_model,
)
from polypool.tasks.run import Run
from polypool.tasks.scoring.attention_maps import attention_examples, question_pairs


@TASKS.register("vqa")
class VQA(CorpusTask, Answers, Chunked):
    """The adapter of visual question answering, as classification over the frequent answers.

    Args:
        run: its complete description; its objective is `bce`, its protocol `vqa`, or `exact-match` for questions with
            fewer than ten answers.
        assets: of a checkpoint; computed from the corpus if None.
        targets: `soft`: 0.3, 0.6, 0.9, 1 for answers given by 1, 2, 3, more people, or for `exact-match` the share of
            people who gave the answer; `hard`: 1 for the most frequent answer.
        answers: splits whose frequent answers are the classes: `train+val`, as is usual for VQA 2.0 (all splits of its
            corpus, whose `test` is the official validation split), or `train`, only the corpus's training split.
        min_count: minimum number of questions with an answer.
        chunk: questions per forward pass in evaluation.
    """

    samples = "questions"
    corpus_kind = QuestionCorpus
    unused = ("data.sample", "data.captions")
    primary = ACCURACY

    def __init__(
        self,
        run: Run,
        assets: dict[str, Any] | None = None,
        *,
        targets: str = "soft",
        answers: str = "train+val",
        min_count: int = 9,
        chunk: int = 512,
    ) -> None:
        require(one_of(*TARGETS), targets=targets)
        require(one_of(*ANSWERS), answers=answers)
        if run.objective.strip() != "bce":
            raise InputError(
                f"the objective {run.objective!r} is not for question answering, whose only objective is bce, the "
                "binary cross-entropy of every answer (--objective bce)"
            )
        self.targets, self.source, self.min_count = targets, answers, min_count
        super().__init__(run, assets, chunk=chunk)
        self.modality = "video" if "video" in self.assets.get(FEATURES, {}).get("source", {}) else "image"
        _check_name(run.protocol)
        self.dev_protocol = run.protocol
        from_plain(tuple[str, ...], self.assets.get("answers"), where="assets.json: answers")
        self.vocabulary = AnswerVocabulary(self.assets["answers"])
        self._reports: dict[tuple[str, str], Report] = {}

    def new_assets(self) -> dict[str, Any]:
        check_answered(self.corpus, self.splits_read)
        vocabulary = AnswerVocabulary.of(self.corpus, self.source, min_count=self.min_count)
        return super().new_assets() | {"answers": list(vocabulary.answers)}

    def check_training(self) -> None:
        self.corpus.check_split("train")
        for split in self.splits_read:
            self.check_protocol(self.run.protocol, split)
        self.check_batches(self.corpus.splits["train"])

    def describe(self) -> Mapping[str, str]:
        return {**super().describe(), "answers": str(len(self.vocabulary))}

    def texts(self, split: str) -> list[str]:
        return [question for (question,) in self.corpus.rows(split, "question")]

    def read(self, split: str) -> QuestionData:
        questions = self.corpus.questions(split)
        targets = None
        if answered(questions, split):
            targets = self.vocabulary.targets(questions, self.targets, protocol=self.run.protocol)
        return question_data(self, split, targets=targets)

    def model(self, *, pretrained: bool = True) -> VQAModel:
        parts = Parts.of(self.run, self.assets, pretrained=pretrained)
        return vqa_model(self.run, parts, answers=len(self.vocabulary))

    @property
    def choices(self) -> tuple[str, ...]:
        return self.vocabulary.answers

    def probabilities(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """Return the probability of each answer to each question, `(B, A)`; independent, they need not sum to 1."""
        return model(batch).float().sigmoid()

    def loss(self, model: nn.Module, batch: dict[str, Tensor], *, epoch: float) -> dict[str, Tensor]:
        return answer_loss(model, batch)

    def passes(
        self, model: nn.Module, batch: dict[str, Tensor], *, epoch: float, chunk: int
    ) -> Iterator[PartialLoss]:
        return answer_passes(model, batch, chunk=chunk)

    def scorer(self, model: nn.Module, split: str) -> Score:
        return AnswerScores(model.eval(), self.data(split))

    def rows_and_columns(self, split: str) -> tuple[Sequence[str], Sequence[str]]:
        return [question.id for question in self.corpus.questions(split)], self.choices

    def check_protocol(self, protocol: str, split: str) -> None:
        _check_name(protocol)
        counts = self.corpus.answer_counts(split)
        if protocol == VQA_RULE and protocol_for(counts) != VQA_RULE:
            found = ", ".join(f"{count:,} with {number}" for number, count in sorted(counts.items()))
            raise InputError(
                f"protocol {protocol!r} is for ten answers a question, and the split {split!r} of {self.corpus.folder} "
                f"has questions of fewer ({found}), whose best possible accuracy would be below 100 %; take --protocol "
                f"{EXACT_MATCH}, the share of a question's answers that equal the prediction"
            )

    def _report(self, split: str, protocol: str) -> Report:
        if (split, protocol) not in self._reports:
            self.check_protocol(protocol, split)
            self._reports[split, protocol] = Report(
                self.corpus, split=split, vocabulary=self.vocabulary, protocol=protocol
            )
        return self._reports[split, protocol]

    def evaluate_scores(self, score: Score, split: str, protocol: str) -> Evaluation:
        report = self._report(split, protocol)
        return report.evaluate(*best_answers(score, questions=len(report.questions), chunk=self.visual_chunk))

    def evaluate(self, model: nn.Module, split: str, protocol: str) -> Evaluation:
        report = self._report(split, protocol)
        data, score, questions = self.data(split), self.scorer(model, split), report.questions
        meter = CostMeter(device_of(model))
        best = best_answers(score, questions=len(questions), chunk=self.visual_chunk)
        cost, evaluation = meter.lap() / len(questions), report.evaluate(*best)
        attention = partial(attention_examples, self, model, question_pairs(data), split, items=questions)
        return replace(evaluation, embed_cost=cost, pictures=(*evaluation.pictures, attention))


def _check_name(protocol: str) -> None:
    if protocol.startswith(tuple(f"{name}-" for name in PROTOCOLS)):
        raise InputError(
            f"protocol {protocol!r}: questions are answered, not ranked; --rescore and --vectors are for retrieval"
        )
    if protocol not in PROTOCOLS:
        raise unknown("protocol of visual question answering", protocol, PROTOCOLS)
