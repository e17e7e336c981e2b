"""Probabilities of the answers to the questions of a split, and the most probable answer of each."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from infra.compute.device import device_of, on_device
from infra.compute.dist import gather_uneven, rank, world
from infra.errors import InputError
from tasks.base import Score
from tasks.inputs.questions import QuestionData
from tasks.models.embeddings import places


class AnswerScores:
    """Called with two slices, it returns the probabilities of a block of questions and answers.

    Args:
        model: gives the logits of a batch; it should be in evaluation mode.
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
    """Return the number of each question's most probable answer and its probability, `(Q,)` each.

    The workers share the questions, and all of them get the whole result.

    Args:
        score: gives the probabilities of blocks of questions and answers.
        questions: how many there are.
        chunk: how many go through the model at once.

    Raises:
        InputError: a probability is no number.
    """
    number, best, confidence = [torch.empty(0, dtype=torch.int64)], [], []
    starts = range(rank() * chunk, questions, world() * chunk)
    for start in tqdm(starts, desc="answering questions", leave=False, delay=2, disable=rank() > 0):
        part = slice(start, min(start + chunk, questions))
        confidence_B, best_B = score(part, slice(None)).max(dim=1)
        number.append(torch.arange(part.start, part.stop))
        best.append(best_B)
        confidence.append(confidence_B)
    number_S = torch.cat(number)
    best_S = torch.cat(best) if best else number_S
    confidence_S = torch.cat(confidence) if confidence else number_S.float()
    place_Q = places(number_S.to(best_S.device))
    best_Q, confidence_Q = (gather_uneven(x)[place_Q].cpu().numpy() for x in (best_S, confidence_S))
    if not np.isfinite(confidence_Q).all():
        raise InputError(
            f"the model gives no number as the probability of an answer to {(~np.isfinite(confidence_Q)).sum():,} of "
            f"{questions:,} questions; it has diverged, or their features hold NaN"
        )
    return best_Q, confidence_Q
