"""A trained model of visual question answering: the most probable answers to a question about an image."""

from __future__ import annotations

from pathlib import Path

import torch

from infra.data import Batch
from infra.device import device_of, on_device
from infra.errors import InputError
from pipelines.evaluate import Trained
from pipelines.searching.given import GivenVisuals, asked

Answer = tuple[str, float]
"""An answer and the model's confidence in it, from 0 to 1."""


class Answerer:
    """Answers questions.

    Args:
        trained: the run.
        split: whose images are offered to choose from.
    """

    def __init__(self, trained: Trained, *, split: str = "test") -> None:
        self.run = trained.run
        self.adapter, self.model, self.split = trained.adapter, trained.model, split
        self.corpus = self.adapter.corpus
        self.items = self.corpus.items(split)
        self.given = GivenVisuals(self.adapter)

    def of_file(self, path: Path, question: str, k: int) -> list[Answer]:
        """Return the k most probable answers to a question about an image file.

        Raises:
            InputError: the image does not decode, its features cannot be made, or the question has no word.
        """
        text = asked(self.adapter, question)
        return self._answers(self.given.of_file(path, video=False) | text, k)

    def of_id(self, id: str, question: str, k: int) -> list[Answer]:
        """Return the k most probable answers to a question about an image of the corpus.

        Raises:
            InputError: there is no such image, or the question has no word.
        """
        text = asked(self.adapter, question)
        return self._answers(self.given.of_id(id) | text, k)

    @torch.inference_mode()
    def _answers(self, batch: Batch, k: int) -> list[Answer]:
        device = device_of(self.model)
        probability_A = self.model(on_device(batch, device)).float().sigmoid()[0].cpu()
        if not torch.isfinite(probability_A).all():
            raise InputError("the model gives probabilities that are no numbers; it has diverged")
        order_K = probability_A.argsort(descending=True, stable=True)[:k].tolist()
        return [(self.adapter.vocabulary.answers[number], float(probability_A[number])) for number in order_K]

    def close(self) -> None:
        """End the processes that decode."""
        self.given.close()
