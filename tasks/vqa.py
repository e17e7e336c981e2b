"""Visual question answering: VQA 2.0, and corpora like it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encoders.base import Encoder
from infra.dist import all_sum, rank
from infra.errors import InputError, unknown
from infra.paths import resolve
from infra.registry import AUGMENTATIONS, ENCODERS, TASKS, Spec
from infra.store import FeatureStore
from pipelines.pages.attention import attention_to_questions
from tasks.base import Evaluation, Metric
from tasks.datasets.questions import Question, QuestionCorpus
from tasks.inputs.captions import Captions
from tasks.inputs.pairs import StoredSets, VisualInputs
from tasks.inputs.pixels import Pixels
from tasks.inputs.questions import QuestionData
from tasks.inputs.unseen import given_inputs
from tasks.models.build import Parts
from tasks.questions.model import VQAModel, vqa_model
from tasks.questions.priors import AnswerPrior
from tasks.questions.report import PROTOCOL, Report, answered
from tasks.questions.scores import AnswerScores, best_answers
from tasks.questions.vocabulary import AnswerVocabulary, Targets
from tasks.scoring.scores import Score
from tasks.visual_text import PIXEL_CHUNK

if TYPE_CHECKING:
    from tasks.run import Run

ANSWERS = {"train+val": ("train", "val", "test"), "train": ("train",)}
"""The splits whose answers may be learnt; in a corpus, `test` is the official validation split, and `val` a part of the
official training split."""


@TASKS.register("vqa")
class VQA:
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

    primary = Metric(name="accuracy")
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
        if chunk < 1:
            raise InputError(f"chunk must be at least 1, not {chunk}")
        _check_objective(run.objective)
        _check_protocol(run.protocol)
        self.run, self.targets = run, targets
        self._visual, self._text = Spec.parse(run.visual), Spec.parse(run.text)
        self._stored = ENCODERS.get(self._visual.name).reads == "features"
        self.chunk = chunk if self._stored else min(chunk, PIXEL_CHUNK)
        self.assets = assets or self._prepare(ANSWERS[answers], min_count)
        self.vocabulary = AnswerVocabulary(self.assets["answers"])
        self._data: dict[str, QuestionData] = {}
        self._reports: dict[str, Report] = {}

    @cached_property
    def corpus(self) -> QuestionCorpus:
        """The questions; opened when they are asked for, since a trained model is of use without them."""
        return QuestionCorpus.open(resolve(self.run.data.corpus))

    @cached_property
    def store(self) -> FeatureStore | None:
        """The features, likewise; None where the visual encoder reads pixels."""
        return FeatureStore.open(resolve(self.run.data.features)) if self._stored else None

    def _prepare(self, splits: tuple[str, ...], min_count: int) -> dict[str, Any]:
        for split in ("train", "val", "test"):  # what is missing is found out now, and not after training
            if self.store:
                self.store.rows([image.id for image in self.corpus.items(split)])
            if not answered(self.corpus.questions(split), split) and split != "test":
                raise InputError(
                    f"{self.corpus.folder}: the questions of the split {split!r} have no answers, and training needs "
                    "them; ingest it again with the annotations"
                )
        labels = [
            q.label for split in splits if split in self.corpus.splits for q in self.corpus.questions(split)
        ]
        if self.store:
            visual = {"dim": self.store.dim, "statistics": self.store.manifest.statistics}
        else:
            visual = ENCODERS.get(self._visual.name).prepare(**self._visual.params)
        questions = (q.question for q in self.corpus.questions("train"))
        return {
            "visual": visual,
            "text": ENCODERS.get(self._text.name).prepare(questions, **self._text.params),
            "answers": list(AnswerVocabulary.build(filter(None, labels), min_count=min_count).answers),
        }

    def describe(self) -> Mapping[str, str]:
        """Return the digests of what the run reads, the sizes of the splits, and how many answers there are."""
        return {
            "corpus": self.corpus.digest,
            **({"features": self.store.digest} if self.store else {}),
            **{f"questions_{split}": str(count) for split, count in self.corpus.splits.items()},
            "answers": str(len(self.vocabulary)),
        }

    def data(self, split: str) -> QuestionData:
        """Return a split's questions.

        Raises:
            InputError: no such split, or images without features.
        """
        if split not in self._data:
            questions = self.corpus.questions(split)
            first_of = {q.image_id: q for q in reversed(questions)}
            images = {id: number for number, id in enumerate(first_of)}
            augment = self.run.data.text_augment
            self._data[split] = QuestionData(
                np.array([images[q.image_id] for q in questions]),
                visual=self._inputs(list(first_of.values())),
                texts=self._texts(questions, split),
                targets=self._targets(questions, split),
                augment=AUGMENTATIONS.build(augment) if augment else None,
            )
        return self._data[split]

    def _inputs(self, asked: list[Question]) -> VisualInputs:
        """Return what the visual encoder reads of the images of some questions."""
        data = self.run.data
        augment = AUGMENTATIONS.build(data.visual_augment) if data.visual_augment else None
        if self.store:
            return StoredSets(self.store, [q.image_id for q in asked], augment=augment, limit=data.max_frames)
        encoder = ENCODERS.get(self._visual.name)
        transform = encoder.transform(self.assets["visual"], **self._visual.params)
        return Pixels([self.corpus.image_path(q) for q in asked], transform=transform, augment=augment)

    def _texts(self, questions: list[Question], split: str) -> Captions:
        texts = self.text_inputs([q.question for q in questions])
        if texts.cut and rank() == 0:
            limit = self.run.data.max_words
            print(f"{split}: {texts.cut:,} of {len(questions):,} questions are cut after {limit} words")
        return texts

    def text_inputs(self, questions: Sequence[str]) -> Captions:
        """Return what the model reads of questions, whether or not they are those of a corpus."""
        tokenizer = ENCODERS.get(self._text.name).tokenizer(self.assets["text"])
        return Captions(questions, tokenizer, limit=self.run.data.max_words)

    def visual_inputs(self, given: Sequence[np.ndarray | str | Path]) -> VisualInputs:
        """Return what the model reads of features in memory, or of image files; see `given_inputs`."""
        return given_inputs(
            given, spec=self._visual, assets=self.assets["visual"], limit=self.run.data.max_frames
        )

    def _targets(self, questions: list[Question], split: str) -> Targets | None:
        if not answered(questions, split):
            return None
        if self.targets == "soft":
            return self.vocabulary.soft_targets([q.answers for q in questions])
        return self.vocabulary.hard_targets([q.label for q in questions])

    def model(self, *, pretrained: bool = True) -> VQAModel:
        """Return a new model."""

        def encoder(spec: str, assets: dict[str, Any]) -> Encoder:
            made = ENCODERS.build(spec, assets)
            if pretrained:
                made.load_pretrained()
            return made

        parts = Parts(
            self.run,
            visual=lambda: encoder(self.run.visual, self.assets["visual"]),
            text=lambda: encoder(self.run.text, self.assets["text"]),
        )
        return vqa_model(self.run, parts, answers=len(self.vocabulary))

    def loss(self, model: nn.Module, batch: dict[str, Tensor], *, epoch: float) -> dict[str, Tensor]:
        """Return the binary cross-entropy of every answer, and what the most probable one is worth, in per cent.

        It is summed over the answers and averaged over the questions of the global batch, as in the
        bottom-up-attention baseline, so every worker may hold a share of any size.
        """
        logit_BA, target_BA = model(batch).float(), batch["target"]
        with torch.autocast(logit_BA.device.type, enabled=False):
            loss = F.binary_cross_entropy_with_logits(logit_BA, target_BA, reduction="sum")
        score = target_BA.gather(1, logit_BA.detach().argmax(dim=1, keepdim=True)).sum()
        count = torch.full_like(score, len(target_BA))
        loss, score, count = all_sum(torch.stack([loss, score, count])).unbind()
        return {"loss": loss / count.detach(), "accuracy": 100 * score.detach() / count.detach()}

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
        """Judge the most probable answers of a split, by any function that gives probabilities."""
        _check_protocol(protocol)
        if split not in self._reports:
            train = self.corpus.questions("train")
            self._reports[split] = Report(
                self.corpus,
                split=split,
                prior=AnswerPrior([q.question for q in train], [q.label for q in train]),
                vocabulary=self.vocabulary,
            )
        report = self._reports[split]
        started, questions = time.perf_counter(), len(report.questions)
        best_Q, confidence_Q = best_answers(score, questions=questions, chunk=self.chunk)
        milliseconds = 1e3 * (time.perf_counter() - started)
        found = report.evaluation(best_Q, confidence_Q, files=rank() == 0)
        return replace(found, embed_ms=milliseconds / questions)

    def evaluate(self, model: nn.Module, split: str, protocol: str) -> Evaluation:
        """Score a split; one without answers gives no accuracy, and a file of results."""
        _check_protocol(protocol)
        found = self.evaluate_scores(self.scorer(model, split), split, protocol)
        attention = partial(attention_to_questions, self, model, split)
        return replace(found, pictures=(*found.pictures, attention))


def _check_objective(objective: str) -> None:
    if objective.strip() != "bce":
        raise InputError(
            f"the objective {objective!r} is none of visual question answering, which has one: bce, the binary "
            "cross-entropy of every answer (--objective bce)"
        )


def _check_protocol(protocol: str) -> None:
    if protocol != PROTOCOL:
        raise unknown("protocol of visual question answering", protocol, (PROTOCOL,))
