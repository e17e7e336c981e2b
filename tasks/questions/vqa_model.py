"""The model, loss and answers of visual question answering (Stefanini et al., ICPR 2020, sections III-B and III-C)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polypool.encoders.encoder import xavier_linear
from polypool.infra.batches import Batch
from polypool.infra.compute.device import device_of, on_device
from polypool.infra.compute.dist import all_sum, gather_uneven, rank, world
from polypool.infra.compute.dropout import current_draws, drawn
from polypool.infra.errors import InputError
from polypool.infra.process.progress import Progress
from polypool.infra.registry import FUSIONS
from polypool.tasks.abilities import PartialLoss
from polypool.tasks.adapter import Score
from polypool.tasks.inputs.pairs import QuestionData
from polypool.tasks.models.branch import (
    Branch,
    check_widths,
    look_at_each_other,
    pool_both,
    refuse_distributions,
)
from polypool.tasks.models.dual_encoder import sample_positions
from polypool.tasks.models.parts import Parts
from polypool.tasks.questions.fusions import Fusion
from polypool.tasks.run import Run
from polypool.tasks.similarities.vectors import at_least_float32, mean_vector


class VQAModel(nn.Module):
    """Encoders, a cross-modal encoder, aggregators, a feed-forward layer per modality, a fusion and a classifier.

    Batches hold `visual` and `visual_mask` of n images, `text` and `text_mask` of B questions and, if questions share
    images, `image` `(B,)`, the row of each question's image.

    For aggregators with K vectors, their mean is used. An aggregator that needs a context gets the other modality; an
    encoder's global feature bypasses the cross-modal encoder.

    Args:
        visual: encoder and aggregator of images.
        text: encoder and aggregator of questions.
        fusion: combines the two embeddings.
        answers: number of candidate answers.
        cross: cross-modal encoder before aggregation, or None.
    """

    def __init__(
        self, visual: Branch, text: Branch, fusion: Fusion, *, answers: int, cross: nn.Module | None = None
    ) -> None:
        super().__init__()
        for branch in (visual, text):
            refuse_distributions(branch.aggregator, "answering questions")
        self.visual, self.text, self.cross = visual, text, cross
        self.visual_feed, self.text_feed = FeedForward(visual.width), FeedForward(text.width)
        self.fusion = fusion
        self.classifier = xavier_linear(fusion.width, answers)
        # one answer is expected, so the loss does not start with thousands of answers at a probability of one half
        nn.init.constant_(self.classifier.bias, -math.log(answers))

    def forward(self, batch: Batch) -> Tensor:
        """Return the `(B, A)` logits of every answer to every question."""
        visual = self.visual.encoder(batch["visual"], batch["visual_mask"])
        if "image" in batch:
            visual = tuple(part[batch["image"]] for part in visual)
        text = self.text.encoder(batch["text"], batch["text_mask"])
        if self.cross is not None:
            crossed = self.cross(*visual[:2], *text[:2])
            visual, text = (*crossed[:2], *visual[2:]), (*crossed[2:], *text[2:])
        embeddings = pool_both((self.visual, self.text), (visual, text))
        visual_BV, text_BT = map(mean_vector, embeddings)
        fused_BW = self.fusion(self.visual_feed(visual_BV), self.text_feed(text_BT))
        return self.classifier(fused_BW)


class FeedForward(nn.Module):
    """`x + linear(relu(linear(x)))`, all of one width.

    The paper names the layer and its width, and does not say whether it is residual. Here it is, as after every
    attention of the model.

    Args:
        width: of input, inner layer and output.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.outer = xavier_linear(width, width), xavier_linear(width, width)

    def forward(self, x_BD: Tensor) -> Tensor:
        """Return `(B, D)`."""
        return x_BD + self.outer(self.inner(x_BD).relu())


def vqa_model(run: Run, parts: Parts, *, answers: int) -> VQAModel:
    """Return a new model of a run.

    Raises:
        InputError: an unknown name or parameter, different widths with a cross-modal encoder, or a setting that this
            model does not support.
    """
    for name, setting in (
        ("model", run.model),
        ("similarity", run.similarity),
        ("regularisers", run.regularisers),
    ):
        if setting:
            raise InputError(f"answering questions has no place for --{name} {setting}; leave it empty")
    visual, text = parts.branches()
    if look_at_each_other(visual, text) or run.cross:
        check_widths(visual.encoder.width, text.encoder.width)
    fusion = FUSIONS.build(run.fusion, visual.width, text.width)
    return VQAModel(visual, text, fusion, answers=answers, cross=parts.cross(visual.encoder.width))


def answer_loss(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """Return the binary cross-entropy of every answer, and the accuracy of the most probable one in per cent.

    The loss is summed over the answers and averaged over the questions of the global batch, as in the
    bottom-up-attention baseline, so workers may hold shares of different sizes.
    """
    logit_BA, target_BA = at_least_float32(model(batch)), batch["target"]
    with torch.autocast(logit_BA.device.type, enabled=False):
        loss = F.binary_cross_entropy_with_logits(logit_BA, target_BA, reduction="sum")
    score = target_BA.gather(1, logit_BA.detach().argmax(dim=1, keepdim=True)).sum()
    count = torch.full_like(score, len(target_BA))
    loss, score, count = all_sum(torch.stack([loss, score, count])).unbind()
    return {"loss": loss / count.detach(), "accuracy": 100 * score.detach() / count.detach()}


def answer_passes(model: nn.Module, batch: Batch, *, chunk: int) -> Iterator[PartialLoss]:
    """Yield the loss of each chunk, weighted by its share of the questions; they add up to the batch's loss."""
    questions, draws = len(batch["target"]), current_draws()
    for first in range(0, questions, chunk):
        part = {name: x[first : first + chunk] for name, x in batch.items()}
        samples = len(part["target"])
        own = replace(draws, first=draws.first + first, samples=samples) if draws else None
        with drawn(own):
            terms = answer_loss(model, part)
        terms = {name: value * (samples / questions) for name, value in terms.items()}
        yield PartialLoss(loss=terms["loss"], terms=terms)


class AnswerScores:
    """A score function of two slices that returns the probabilities of a block of questions and answers.

    Args:
        model: returns the logits of a batch; should be in evaluation mode.
        data: the questions of a split.
    """

    def __init__(self, model: nn.Module, data: QuestionData) -> None:
        self.model, self.data = model, data
        self.device = device_of(model)

    @torch.inference_mode()
    def __call__(self, questions: slice, answers: slice) -> Tensor:
        """Return the probability of each answer to each question, float32."""
        batch = self.data.evaluation_batch(np.arange(len(self.data))[questions])
        logit_BA = self.model(on_device(batch, self.device))
        return logit_BA.float().sigmoid()[:, answers]


def best_answers(score: Score, *, questions: int, chunk: int) -> tuple[np.ndarray, np.ndarray]:
    """Return each question's most probable answer (its class) and its probability, `(Q,)` each.

    The workers share the questions, and all of them get the whole result.

    Args:
        score: returns the probabilities of blocks of questions and answers.
        questions: number of questions.
        chunk: questions per forward pass.

    Raises:
        InputError: a probability is NaN.
    """
    number, best, confidence = [], [], []
    # a rank without a chunk repeats the first one, so that all ranks gather tensors of one type and device
    starts = range(rank() * chunk, questions, world() * chunk) or range(1)
    for start in Progress(starts, desc="answering questions", leave=False, disable=rank() > 0):
        part = slice(start, min(start + chunk, questions))
        confidence_B, best_B = score(part, slice(None)).max(dim=1)
        number.append(torch.arange(part.start, part.stop))
        best.append(best_B)
        confidence.append(confidence_B)
    best_S, confidence_S = torch.cat(best), torch.cat(confidence)
    place_Q = sample_positions(torch.cat(number).to(best_S.device))
    best_Q, confidence_Q = (gather_uneven(x)[place_Q].cpu().numpy() for x in (best_S, confidence_S))
    if not np.isfinite(confidence_Q).all():
        raise InputError(
            f"the model gives no number as the probability of an answer to {(~np.isfinite(confidence_Q)).sum():,} of "
            f"{questions:,} questions; it has diverged, or their features hold NaN"
        )
    return best_Q, confidence_Q
