"""The most probable answers of a trained model to a question about an image."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from infra.compute.device import device_of, on_device
from infra.data import Batch
from infra.errors import InputError
from pipelines.searching.queries import VisualQueries, text_query
from tasks.abilities import Answers

Answer = tuple[str, float]
"""An answer and the model's confidence in it, from 0 to 1."""


class AnswerSearch:
    """Looks for the answers to a question about an image of a corpus, or of a file.

    Args:
        adapter: of the task; `Searchable`, too.
        model: in evaluation mode.
        split: whose images are offered to choose from.

    Raises:
        InputError: no such split.
    """

    def __init__(self, adapter: Answers, model: nn.Module, *, split: str = "test") -> None:
        self.adapter, self.model, self.split = adapter, model, split
        self.corpus = adapter.corpus
        self.items = self.corpus.items(split)
        self.queries = VisualQueries(adapter)

    def of_file(self, path: Path, question: str, k: int) -> list[Answer]:
        """Return the k most probable answers to a question about an image file.

        Raises:
            InputError: the image does not decode, its features cannot be made, or the question has no word.
        """
        text = text_query(self.adapter, question)
        return self._answers(self.queries.of_file(path, video=False) | text, k)

    def of_id(self, id: str, question: str, k: int) -> list[Answer]:
        """Return the k most probable answers to a question about an image of the corpus.

        Raises:
            InputError: there is no such image, or the question has no word.
        """
        text = text_query(self.adapter, question)
        return self._answers(self.queries.of_id(id) | text, k)

    @torch.inference_mode()
    def _answers(self, batch: Batch, k: int) -> list[Answer]:
        probability_BA = self.adapter.probabilities(self.model, on_device(batch, device_of(self.model)))
        probability_A = probability_BA[0].cpu()
        if not torch.isfinite(probability_A).all():
            raise InputError("the model gives probabilities that are no numbers; it has diverged")
        order_K = probability_A.argsort(descending=True, stable=True)[:k].tolist()
        return [(self.adapter.choices[number], float(probability_A[number])) for number in order_K]

    def close(self) -> None:
        """End the processes that decode."""
        self.queries.close()
