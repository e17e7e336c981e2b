"""Visual question answering: VQA 2.0, and corpora like it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from infra.compute.cost import CostMeter
from infra.compute.device import device_of
from infra.compute.dist import all_sum, rank
from infra.compute.dropout import current_draws, drawn
from infra.errors import InputError, unknown
from infra.fields import from_plain
from infra.paths import resolve_place
from infra.registry import TASKS
from tasks.abilities import Answers, Chunked, Collapse, Pass, Watchful
from tasks.base import Evaluation, Score
from tasks.datasets.questions import Question, QuestionCorpus
from tasks.inputs.captions import Captions
from tasks.inputs.pairs import TextInputs
from tasks.inputs.presence import check_features
from tasks.inputs.questions import QuestionData
from tasks.questions.model import VQAModel, vqa_model
from tasks.questions.priors import AnswerPrior
from tasks.questions.report import ACCURACY, PROTOCOL, Report, answered
from tasks.questions.scores import AnswerScores, best_answers
from tasks.questions.vocabulary import AnswerTargets, AnswerVocabulary
from tasks.run import Run
from tasks.scoring.attended import question_pairs
from tasks.scoring.attention import AttentionExamples
from tasks.similarities.vectors import at_least_float32
from tasks.visual_language import VisualLanguageTask

ANSWERS = {"train+val": ("train", "val", "test"), "train": ("train",)}
"""The splits whose answers may be learnt; in a corpus, `test` is the official validation split, and `val` a part of the
official training split."""


@TASKS.register("vqa")
class VQA(VisualLanguageTask, Answers, Chunked, Watchful):
    """The adapter of visual question answering, as a choice between the frequent answers.

    Args:
        run: its complete description; its objective is `bce`, its protocol `vqa`.
        assets: of a checkpoint; made from the corpus where there are none.
        targets: `soft`: 0.3, 0.6, 0.9 and 1 for answers that one, two, three and more people gave; `hard`: 1 for the
            answer that most gave.
        answers: whose frequent answers are the choices: `train+val`, as is usual, or `train` alone.
        min_count: how many questions an answer must be that of.
        chunk: how many questions are answered at once in evaluation.
    """

    samples = "questions"
    unused = ("data.sample", "data.captions")
    primary = ACCURACY
    dev_protocol = PROTOCOL

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
        if targets not in ("soft", "hard"):
            raise unknown("kind of targets", targets, ("soft", "hard"))
        if answers not in ANSWERS:
            raise unknown("source of answers", answers, ANSWERS)
        _check_objective(run.objective)
        _check_protocol(run.protocol)
        super().__init__(run, chunk=chunk)
        self.targets = targets
        self.assets = self._prepare(ANSWERS[answers], min_count) if assets is None else self.held(assets)
        self.vocabulary = AnswerVocabulary(self.assets["answers"])
        self._data: dict[str, QuestionData] = {}
        self._reports: dict[str, Report] = {}

    @cached_property
    def corpus(self) -> QuestionCorpus:
        """The questions."""
        return self.present(QuestionCorpus.open(resolve_place(self.run.data.corpus)))

    def held(self, assets: Any) -> dict[str, Any]:
        """Return the assets of a checkpoint, with the answers that a model of it knows."""
        from_plain(tuple[str, ...], super().held(assets).get("answers"), where="assets.json: answers")
        return assets

    def _prepare(self, splits: tuple[str, ...], min_count: int) -> dict[str, Any]:
        if self.store:
            check_features(self.corpus, self.store, modality=self.modality)
        for split in ("train", "val", "test"):  # what is missing is found out now, and not after training
            if not answered(self.corpus.questions(split), split) and split != "test":
                raise InputError(
                    f"{self.corpus.folder}: the questions of the split {split!r} have no answers, and training needs "
                    "them; ingest it again with the annotations"
                )
        self.check_texts()
        labels = [
            q.label for split in splits if split in self.corpus.splits for q in self.corpus.questions(split)
        ]
        assets = self.encoder_assets(self.counted_texts())
        answers = AnswerVocabulary.build(filter(None, labels), min_count=min_count).answers
        return assets | {"answers": list(answers)}

    def check_training(self) -> None:
        """Refuse a training split of fewer questions than a batch."""
        self.check_batches(len(self.corpus.questions("train")))

    def describe(self) -> Mapping[str, str]:
        """Return the digests of what the run reads, the sizes of the splits, and how many answers there are."""
        return {**super().describe(), "answers": str(len(self.vocabulary))}

    def data(self, split: str) -> QuestionData:
        """Return a split's questions.

        Raises:
            InputError: no such split, or images or questions without features.
        """
        if split not in self._data:
            questions = self.corpus.questions(split)
            images = self.corpus.items(split)
            number = {image.id: n for n, image in enumerate(images)}
            self._data[split] = QuestionData(
                np.array([number[q.image_id] for q in questions]),
                visual=self.corpus_inputs(images),
                texts=self._text_inputs(split),
                targets=self._targets(questions, split),
                augment=self.text_augmentation(),
            )
        return self._data[split]

    def texts(self, split: str) -> list[str]:
        """Return the questions of a split."""
        return [question.question for question in self.corpus.questions(split)]

    def _text_inputs(self, split: str) -> TextInputs:
        inputs = self.corpus_texts(self.texts(split))
        if isinstance(inputs, Captions) and inputs.cut and rank() == 0:
            limit = self.run.data.max_words
            print(f"{split}: {inputs.cut:,} of {len(inputs):,} questions are cut after {limit} words")
        return inputs

    def _targets(self, questions: list[Question], split: str) -> AnswerTargets | None:
        if not answered(questions, split):
            return None
        if self.targets == "soft":
            return self.vocabulary.soft_targets([q.answers for q in questions])
        return self.vocabulary.hard_targets([q.label for q in questions])

    def model(self, *, pretrained: bool = True) -> VQAModel:
        """Return a new model."""
        return vqa_model(self.run, self.parts(pretrained=pretrained), answers=len(self.vocabulary))

    @property
    def choices(self) -> tuple[str, ...]:
        """The answers, in the order of the model's outputs."""
        return self.vocabulary.answers

    def probabilities(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """Return the probability of each answer to each question, `(B, A)`, each by itself: they need not sum to 1."""
        return model(batch).float().sigmoid()

    def loss(self, model: nn.Module, batch: dict[str, Tensor], *, epoch: float) -> dict[str, Tensor]:
        """Return the binary cross-entropy of every answer, and what the most probable one is worth, in per cent.

        It is summed over the answers and averaged over the questions of the global batch, as in the
        bottom-up-attention baseline, so every worker may hold a share of any size.
        """
        logit_BA, target_BA = at_least_float32(model(batch)), batch["target"]
        with torch.autocast(logit_BA.device.type, enabled=False):
            loss = F.binary_cross_entropy_with_logits(logit_BA, target_BA, reduction="sum")
        score = target_BA.gather(1, logit_BA.detach().argmax(dim=1, keepdim=True)).sum()
        count = torch.full_like(score, len(target_BA))
        loss, score, count = all_sum(torch.stack([loss, score, count])).unbind()
        return {"loss": loss / count.detach(), "accuracy": 100 * score.detach() / count.detach()}

    def passes(
        self, model: nn.Module, batch: dict[str, Tensor], *, epoch: float, chunk: int
    ) -> Iterator[Pass]:
        """Yield the loss of each chunk, by its part of the questions: their sum is the mean over all of them."""
        questions, draws = len(batch["target"]), current_draws()
        for first in range(0, questions, chunk):
            part = {name: x[first : first + chunk] for name, x in batch.items()}
            samples = len(part["target"])
            own = replace(draws, first=draws.first + first, samples=samples) if draws else None
            with drawn(own):
                terms = self.loss(model, part, epoch=epoch)
            terms = {name: value * (samples / questions) for name, value in terms.items()}
            yield Pass(loss=terms["loss"], terms=terms)

    def collapse(
        self, model: nn.Module, means: Mapping[str, float], *, first: Mapping[str, float], epoch: float
    ) -> Collapse | None:
        """Return None: answers may be alike for long before a model looks at its images."""
        return None

    def collapse_of(self, evaluation: Evaluation) -> Collapse | None:
        """Return what is wrong where every question has the same answer, as surely: the model looks at nothing."""
        answers = {*evaluation.per_query["prediction"].tolist()}
        confidence_Q = evaluation.per_query["confidence"]
        if len(answers) > 1 or np.ptp(confidence_Q) > 1e-6:
            return None
        return Collapse(symptoms=(f"every question is answered {min(answers)!r}, each as surely",))

    def scorer(self, model: nn.Module, split: str) -> Score:
        """Return `score(questions, answers)`, which computes any block of a split's probabilities."""
        model.eval()
        return AnswerScores(model, self.data(split))

    def check_same_data(self, other: VQA, split: str) -> None:
        """Refuse another adapter as a member of an ensemble if its questions or its choices of answers differ."""
        ours, theirs = ([q.id for q in adapter.corpus.questions(split)] for adapter in (self, other))
        if ours != theirs or self.vocabulary.answers != other.vocabulary.answers:
            raise InputError(
                f"runs on {self.run.data.corpus} and {other.run.data.corpus} cannot be one ensemble: the questions of "
                f"their {split} splits or the answers that they choose from differ"
            )

    def evaluate_scores(self, score: Score, split: str, protocol: str) -> Evaluation:
        """Evaluate the most probable answers of a split, by any function that gives probabilities."""
        _check_protocol(protocol)
        report = self._report(split)
        best_Q, confidence_Q = best_answers(score, questions=len(report.questions), chunk=self.visual_chunk)
        return report.evaluation(best_Q, confidence_Q, files=rank() == 0)

    def _report(self, split: str) -> Report:
        if split not in self._reports:
            train = self.corpus.questions("train")
            self._reports[split] = Report(
                self.corpus,
                split=split,
                prior=AnswerPrior([q.question for q in train], [q.label for q in train]),
                vocabulary=self.vocabulary,
            )
        return self._reports[split]

    def evaluate(self, model: nn.Module, split: str, protocol: str) -> Evaluation:
        """Score a split; one without answers gives no accuracy, and a file of results."""
        _check_protocol(protocol)
        questions, score = len(self._report(split).questions), self.scorer(model, split)
        meter = CostMeter(device_of(model))
        evaluation = self.evaluate_scores(score, split, protocol)
        return replace(
            evaluation,
            embed_cost=meter.lap() / questions,
            pictures=(*evaluation.pictures, partial(self._attention, model, split)),
        )

    def _attention(self, model: nn.Module, split: str) -> AttentionExamples | None:
        questions = self.corpus.questions(split)
        return self.attention(
            model,
            question_pairs(self.data(split)),
            split,
            items=questions,
            texts=[question.question for question in questions],
        )


def _check_objective(objective: str) -> None:
    if objective.strip() != "bce":
        raise InputError(
            f"the objective {objective!r} is none of visual question answering, which has one: bce, the binary "
            "cross-entropy of every answer (--objective bce)"
        )


def _check_protocol(protocol: str) -> None:
    if protocol != PROTOCOL:
        raise unknown("protocol of visual question answering", protocol, (PROTOCOL,))
