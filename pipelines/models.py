"""A trained model in one folder: no MLflow, no corpus and no feature store are needed to use it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from infra.checkpoint import load_weights
from infra.data import Batch
from infra.device import best_device, device_of, on_device
from infra.errors import InputError
from infra.files import existing, existing_folder, read_json
from infra.registry import TASKS
from tasks.base import TaskAdapter
from tasks.models.base import TRAINING_ONLY
from tasks.models.embeddings import Batches
from tasks.run import Run, from_json

WEIGHTS, RUN, ASSETS = "model.safetensors", "run.json", "assets.json"
"""The files of an exported folder, and of a run's artifact `model`."""

Given = Sequence[np.ndarray | str | Path]
"""Images or videos: features `(N, F)` as a store keeps them, or image files for a model that reads pixels."""

_CHUNK = 256  # texts, or sets of features, that go through the model at once


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A trained model, its run, and the adapter that knows what it reads."""

    run: Run
    adapter: TaskAdapter
    model: nn.Module

    def encode_visual(self, given: Given) -> Tensor:
        """Return the embeddings of images or videos, `(Q, D)` or `(Q, K, D)`."""
        return self._embeddings("encode_visual", self._visual(given))

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Return the embeddings of captions, `(G, D)` or `(G, K, D)`."""
        return self._embeddings("encode_text", self._text(texts))

    def scores(self, given: Given, texts: Sequence[str]) -> Tensor:
        """Return the `(Q, G)` scores of every image or video with every caption; higher is more alike.

        Raises:
            InputError: the model does not retrieve, or the input does not fit it.
        """
        if not hasattr(self.model, "scorer"):
            raise self._cannot("score captions")
        score = self.model.scorer(self._visual(given), self._text(texts))
        return score(slice(0, len(given)), slice(0, len(texts)))

    @torch.inference_mode()
    def answers(self, given: Given, questions: Sequence[str]) -> list[tuple[str, float]]:
        """Return the most probable answer to each question about the image beside it, and its probability.

        Raises:
            InputError: the model answers no questions, or the input does not fit it.
        """
        vocabulary = getattr(self.adapter, "vocabulary", None)
        if vocabulary is None:
            raise self._cannot("answer questions")
        if len(given) != len(questions):
            raise InputError(
                f"{len(given)} images and {len(questions)} questions; give an image for each question"
            )
        found = []
        for (_, images), (_, texts) in zip(self._visual(given), self._text(questions), strict=True):
            probability_BA = self.model(self._on_device(images | texts)).float().sigmoid()
            best = zip(*(x_B.tolist() for x_B in probability_BA.max(dim=1)), strict=True)
            found += [(vocabulary.answers[number], share) for share, number in best]
        return found

    @torch.inference_mode()
    def _embeddings(self, encode: str, batches: Batches) -> Tensor:
        if not hasattr(self.model, encode):
            raise self._cannot("encode images and captions apart")
        made = [getattr(self.model, encode)(self._on_device(batch)) for _, batch in batches]
        return torch.cat([embeddings.vectors for embeddings in made])

    def _visual(self, given: Given) -> Batches:
        inputs = self._inputs("visual_inputs", given)

        def make(number_B: np.ndarray) -> Batch:
            visual, mask_BN = inputs.batch(number_B, sample_B=number_B, draw=None)
            return {"visual": visual, "visual_mask": mask_BN}

        return _batches(len(given), make)

    def _text(self, texts: Sequence[str]) -> Batches:
        return _batches(len(texts), self._inputs("text_inputs", texts).batch)

    def _inputs(self, name: str, given: Sequence[Any]) -> Any:
        if isinstance(given, str | Path) or not len(given):
            raise InputError("give a list with at least one image, video or text")
        if not hasattr(self.adapter, name):
            raise self._cannot("read images and texts by itself")
        return getattr(self.adapter, name)(given)

    def _on_device(self, batch: Batch) -> Batch:
        device = device_of(self.model)
        return on_device(batch, device)

    def _cannot(self, what: str) -> InputError:
        return InputError(
            f"a model of the task {self.run.task!r} with {self.run.aggregator!r} cannot {what}; `model` is the "
            "module itself and `adapter` makes its batches"
        )


class _Make(Protocol):
    def __call__(self, number_B: np.ndarray) -> Batch: ...


def _batches(count: int, make: _Make) -> Iterator[tuple[Tensor, Batch]]:
    for start in range(0, count, _CHUNK):
        number_B = np.arange(start, min(start + _CHUNK, count))
        yield torch.from_numpy(number_B), make(number_B)


def load_exported(folder: str | Path) -> Exported:
    """Load the model that `python -m pipelines.export` wrote.

    Raises:
        InputError: no such folder, a file of it is missing or damaged, or it belongs to another version.
    """
    folder = existing_folder(folder, what="a folder that `python -m pipelines.export` wrote")
    run = from_json(read_json(folder / RUN, what="the settings of an exported run"))
    assets = read_json(folder / ASSETS, what="the assets of an exported model")
    weights = existing(folder / WEIGHTS, what="the weights of an exported model")
    adapter = TASKS.build(run.task, run, assets=assets)
    model = adapter.model(pretrained=False)
    load_weights(model, weights, optional=TRAINING_ONLY)
    device = best_device()
    return Exported(run=run, adapter=adapter, model=model.to(device).eval())
