"""The contract between a task and the loop: what a batch means, its loss, its scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from infra.data import Dataset


@dataclass(frozen=True, kw_only=True)
class Metric:
    """The number that chooses the best epoch."""

    name: str
    higher_is_better: bool = True

    def better(self, value: float, than: float | None) -> bool:
        """Whether `value` beats the best so far; anything beats None."""
        return than is None or (value > than if self.higher_is_better else value < than)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What scoring a split under a protocol gave.

    Attributes:
        protocol: its name.
        metrics: numbers by name, without the protocol.
        per_query: arrays that say how each query did, such as ids and ranks.
        files: more to keep, by file name.
        pictures: what makes pages and figures to keep, by file name. Called once, at the end of a run, and then by
            every worker, since a score may need all of them.
        embed_ms: milliseconds to encode an item and its texts, or to answer a question; NaN if it was not timed.
    """

    protocol: str
    metrics: dict[str, float]
    per_query: dict[str, np.ndarray] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    pictures: tuple[Callable[[], Mapping[str, bytes]], ...] = ()
    embed_ms: float = math.nan


class TaskAdapter(Protocol):
    """What a task's batches mean and how it is scored. The loop never asks which task it has.

    Built by the registry from a run's `task` spec as `Adapter(run, assets=None)`, where `assets` are those of a
    checkpoint; with them it is built without its data, which is opened when asked for. One that also has
    `text_inputs(texts)` and `visual_inputs(given)` lets an exported model read what is in no corpus.
    """

    primary: Metric
    dev_protocol: str
    """The protocol that chooses the best epoch, on the `val` split."""

    @property
    def assets(self) -> dict[str, Any]:
        """What rebuilds the model beside the run and the weights, as JSON."""

    def describe(self) -> Mapping[str, str]:
        """Return what tracking notes about the data: digests, counts."""

    def data(self, split: str) -> Dataset:
        """Return the samples of a split."""

    def model(self, *, pretrained: bool = True) -> nn.Module:
        """Return a new model, with published weights in the parts that have them unless told otherwise."""

    def loss(self, model: nn.Module, batch: dict[str, Tensor], *, epoch: float) -> dict[str, Tensor]:
        """Return scalars: `loss` is minimised, every other entry is logged.

        Args:
            model: called, not picked apart, since DDP may be wrapped around it.
            batch: this worker's share of the batch.
            epoch: epochs trained so far, as a fraction.
        """

    def evaluate(self, model: nn.Module, split: str, protocol: str) -> Evaluation:
        """Score a split."""
