"""The contract between a task and the training loop: batches, loss, evaluation."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol

import numpy as np

from polypool.infra.fields import Rule
from polypool.infra.tracking import Source

if TYPE_CHECKING:  # verbs that only read results, such as `compare`, do not import torch
    from torch import Tensor, nn

    from polypool.infra.batches import Dataset
    from polypool.tasks.run import Run

Score = Callable[[slice, slice], "Tensor"]
"""`score(items, texts) -> (items, texts)`: any block of a split's scores, `(V, T)`; higher is more similar."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric of an evaluation, and its meaning.

    Attributes:
        name: its key in `Evaluation.metrics`, without the protocol.
        higher_is_better: False for errors, losses, ranks.
        best: best possible value; NaN if there is none or it is unknown.
        chance: mean value of an untrained model on the scored split; NaN if unknown.
        unit: such as `%`; empty for none.
        in_tables: whether tables show it by default; sorting by it is always possible.
    """

    name: str
    higher_is_better: bool = True
    best: float = math.nan
    chance: float = math.nan
    unit: str = ""
    in_tables: bool = True

    @property
    def sign(self) -> int:
        """1 if higher is better, otherwise -1: the better of two values has the larger `sign * value`."""
        return 1 if self.higher_is_better else -1

    @property
    def direction(self) -> str:
        return "higher is better" if self.higher_is_better else "lower is better"

    @property
    def label(self) -> str:
        """The name with its unit, and with its direction if lower is better."""
        name = self.name + (f" in {self.unit}" if self.unit else "")
        return name if self.higher_is_better else f"{name}, {self.direction}"

    def better(self, value: float, than: float | None) -> bool:
        """Whether `value` beats the best so far; any finite number beats None, NaN and infinity beat nothing."""
        return math.isfinite(value) and (than is None or self.sign * value > self.sign * than)

    def chance_normalised(self, value: float) -> float:
        """Return 0 for chance and 100 for the best possible value; NaN if one is unknown or both are equal."""
        if self.best == self.chance:
            return math.nan
        return 100.0 * (value - self.chance) / (self.best - self.chance)

    def above_chance(self, low: float, high: float) -> bool:
        """Whether an interval lies on the better side of chance; True if an end or the chance level is unknown."""
        return not (low <= self.chance if self.higher_is_better else high >= self.chance)

    def shade(self, values: np.ndarray) -> np.ndarray:
        """Return the shades of values in a heat map, 0 for chance and worse, 1 for the best possible value.

        If these are unknown, 0 is the worst and 1 the best of the values, 0.5 if all are equal. NaN stays NaN.
        """
        if self.best != self.chance and not math.isnan(self.best - self.chance):
            return np.clip((values - self.chance) / (self.best - self.chance), 0.0, 1.0)
        known = self.sign * values[~np.isnan(values)]
        if not known.size or known.min() == known.max():
            return values * 0 + 0.5
        return (self.sign * values - known.min()) / np.ptp(known)


_SOME = Rule("at least one", bool)


@dataclass(frozen=True, kw_only=True)
class QueryMean:
    """A mean over queries of one kind, such as captions.

    Attributes:
        scores: names of arrays in `Evaluation.per_query`, `(Q,)`; a query's score is their sum. Queries with a NaN
            score are excluded.
        units: name of the array `(Q,)` with the id of each query's unit, such as an image.
        factor: of the mean, such as 100 for fractions and a metric in per cent.
        offset: added afterwards, such as 1 for ranks stored from 0 and shown from 1.
    """

    scores: Annotated[tuple[str, ...], _SOME]
    units: str
    factor: float = 1.0
    offset: float = 0.0


@dataclass(frozen=True, kw_only=True)
class QueryMetric:
    """A metric as the sum of means over queries.

    Differences are tested over the units of a split, each with all its queries.

    Attributes:
        name: of the metric.
        means: one for an accuracy, one per direction of retrieval for RSUM.
        units: description of the units, such as `images with their captions`.
    """

    name: str
    means: Annotated[tuple[QueryMean, ...], _SOME]
    units: str


class PictureRecord:
    """Base of the records that pages and figures are drawn from; `figures.pages` draws each by its type."""


Pictures = PictureRecord | Mapping[str, bytes] | None
"""A record to draw pages from, files by name, or nothing."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The result of scoring a split under a protocol.

    Attributes:
        protocol: its name.
        metrics: numbers by name, without the protocol.
        protocol_version: incremented when the protocol's computation changes, so that numbers of two versions are never
            compared.
        primary: the primary metric of the protocol, with the chance level of this split; under the adapter's
            `dev_protocol`, the adapter's primary metric. A split without answers has no value of it in `metrics`.
        others: further metrics for sorting tables, in the order of tables; other numbers in `metrics` are notes about
            the evaluation, such as counts.
        per_query: arrays with a row for each query, such as ids and ranks.
        query_metrics: metrics that are means of those arrays; only their differences are tested.
        files: further files to log, by name.
        pictures: functions that return records of pages, or files by name. Every worker calls them once, after the
            metrics are logged, because a score may need all workers; only the first worker's records are drawn.
        embed_cost: cost of encoding an item and its texts, or of answering a question, in `infra.compute.cost.UNIT`;
            NaN if not measured.
        query_cost: mean cost of scoring a query against its gallery and ranking it, over all directions.
        members: evaluations of jointly trained tasks, by name.
        item_bytes: size of the embeddings of an image or video in bytes, without zero vectors that fill up sets; NaN
            for a model without embeddings.
    """

    protocol: str
    metrics: dict[str, float]
    primary: Metric
    others: tuple[Metric, ...] = ()
    per_query: dict[str, np.ndarray] = field(default_factory=dict)
    query_metrics: tuple[QueryMetric, ...] = ()
    files: dict[str, bytes] = field(default_factory=dict)
    pictures: tuple[Callable[[], Pictures], ...] = ()
    embed_cost: float = math.nan
    query_cost: float = math.nan
    item_bytes: float = math.nan
    members: Mapping[str, Evaluation] = field(default_factory=dict)
    protocol_version: int = 1


class Member(NamedTuple):
    """One of several jointly trained tasks."""

    run: Run
    """The task's run, with the settings of the joint run; `jointly` names the joint task."""
    adapter: TaskAdapter
    """The task's adapter."""
    model: nn.Module
    """The task's part of the model."""


class TaskAdapter(Protocol):
    """Defines a task's batches, model, loss and evaluation. The training loop is independent of tasks.

    Adapters derive from this class, and from the classes of `tasks.abilities` that they support. The registry builds
    one from a run's `task` spec as `Adapter(run, assets=None, **parameters)`: without assets for a new run, with a
    checkpoint's assets for a trained model, whose data are opened on first use.
    """

    primary: Metric
    """The metric that selects the best epoch; its chance level depends on the split and is set in evaluations."""
    dev_protocol: str
    """The protocol that selects the best epoch, on the `val` split."""
    assets: dict[str, Any]
    """Data for rebuilding a model, in addition to run and weights, as plain JSON."""
    unused: tuple[str, ...] = ()
    """Settings of a run that the task does not use, such as `("fusion", "data.sample")`. A run that changes one is
    refused before it starts."""

    uses_all_weights: bool = True
    """False if a batch may leave some weights without a gradient; they are not updated in that step."""

    @abstractmethod
    def describe(self) -> Mapping[str, str]:
        """Return properties of the data to record, such as digests and counts.

        The properties depend only on the run and its data: a run is not resumed, scored or searched if one has changed.
        """

    def sources(self) -> Sequence[Source]:
        """Return the data that a run reads, for filters in tracking; empty if unknown."""
        return ()

    @abstractmethod
    def data(self, split: str) -> Dataset:
        """Return the samples of a split."""

    def check_training(self) -> None:
        """Check that a run can train, before it starts; other checks also apply to trained models.

        Raises:
            InputError: such as a training split with fewer samples than a batch.
        """

    @abstractmethod
    def model(self, *, pretrained: bool = True) -> nn.Module:
        """Return a new model; if `pretrained`, with published weights in parts that have them."""

    @abstractmethod
    def loss(self, model: Callable[..., Any], batch: dict[str, Tensor], *, epoch: float) -> dict[str, Tensor]:
        """Return scalars: `loss` is minimised, all other entries are logged.

        Args:
            model: must be called as a whole, because it may be wrapped in DDP.
            batch: this worker's share of the batch.
            epoch: epochs trained so far, as a fraction.
        """

    def check_protocol(self, protocol: str, split: str) -> None:
        """Check that a protocol fits a split, before scores are computed.

        Raises:
            InputError: such as a protocol for a split of another size, or missing files that it needs.
        """

    @abstractmethod
    def evaluate(self, model: nn.Module, split: str, protocol: str) -> Evaluation:
        """Score a split under a protocol.

        Raises:
            InputError: an unknown split or protocol, or a protocol that does not fit the split.
        """

    def members(self, model: nn.Module) -> Mapping[str, Member]:
        """Return the jointly trained tasks in a model, by name; empty for a single task.

        Each is recorded as a separate run, with its model and its evaluation in `Evaluation.members`.
        """
        return {}
