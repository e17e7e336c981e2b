"""The contract between a task and the training loop: batches, loss, scores."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol

import numpy as np

from polypool.infra.fields import Rule
from polypool.infra.tracking import Source

if TYPE_CHECKING:  # what reads results alone, such as `compare`, waits for no torch
    from torch import Tensor, nn

    from polypool.infra.batches import Dataset
    from polypool.tasks.run import Run

Score = Callable[[slice, slice], "Tensor"]
"""`score(items, texts) -> (items, texts)`: any block of a split's scores, `(V, T)`; higher is more alike."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number that an evaluation gives, and what it means.

    Attributes:
        name: its key in `Evaluation.metrics`, without the protocol.
        higher_is_better: False for errors, losses, ranks.
        best: the best possible value; NaN if there is none or it is unknown.
        chance: the mean value of an untrained model on the split that was scored; NaN if unknown.
        unit: such as `%`; empty for none.
        in_tables: whether tables show it by default; they can be sorted by it in any case.
    """

    name: str
    higher_is_better: bool = True
    best: float = math.nan
    chance: float = math.nan
    unit: str = ""
    in_tables: bool = True

    @property
    def sign(self) -> int:
        """1 where higher is better, else -1: of two values, the one with the larger `sign * value` is better."""
        return 1 if self.higher_is_better else -1

    @property
    def direction(self) -> str:
        return "higher is better" if self.higher_is_better else "lower is better"

    @property
    def label(self) -> str:
        """The name with its unit, and with its direction where lower is better."""
        name = self.name + (f" in {self.unit}" if self.unit else "")
        return name if self.higher_is_better else f"{name}, {self.direction}"

    def better(self, value: float, than: float | None) -> bool:
        """Whether `value` beats the best so far; any finite number beats None, and NaN or infinity beats nothing."""
        return math.isfinite(value) and (than is None or self.sign * value > self.sign * than)

    def chance_normalised(self, value: float) -> float:
        """Return 0 for chance and 100 for the best possible value; NaN if one of them is unknown or they are equal."""
        if self.best == self.chance:
            return math.nan
        return 100.0 * (value - self.chance) / (self.best - self.chance)

    def above_chance(self, low: float, high: float) -> bool:
        """Whether an interval lies on the better side of chance; unknown numbers do not speak against it."""
        return not (low <= self.chance if self.higher_is_better else high >= self.chance)

    def shade(self, values: np.ndarray) -> np.ndarray:
        """Return the shades of values in a heat map, 0 for chance and worse, 1 for the best possible.

        Where these are unknown, 0 is the worst and 1 the best of the values, 0.5 if all are equal. NaN stays NaN.
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
        scores: names of arrays in `Evaluation.per_query`, `(Q,)`; a query's score is their sum. A query whose score
            is NaN does not count.
        units: name of the array `(Q,)` of the ids of the units, such as images, that queries belong to.
        factor: of the mean, such as 100 where the arrays hold fractions and the metric is in per cent.
        offset: then added, such as 1 for ranks that are kept from 0 and shown from 1.
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
        means: one for an accuracy, one for each direction of retrieval for RSUM.
        units: what the units are called, such as `images with their captions`.
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
        protocol_version: raised whenever the protocol computes something else, so that numbers of two versions are
            never compared.
        primary: the deciding metric of the protocol, with the chance level of this split; under the adapter's
            `dev_protocol` that is the adapter's own. A split without answers has no value of it in `metrics`.
        others: the other metrics that tables may be sorted by, in the order of tables; any more numbers in `metrics`
            are notes about the evaluation, such as counts.
        per_query: arrays with a row for each query, such as ids and ranks.
        query_metrics: the metrics that are means of those arrays; only their differences are tested.
        files: more to keep, by file name.
        pictures: what makes records of pages to keep, or files by name. Called once, at the end of a run, and then by
            every worker, since a score may need all of them; those of the first worker are drawn.
        embed_cost: what it cost to encode an item and its texts, or to answer a question, in `infra.compute.cost.UNIT`;
            NaN if it was not measured.
        query_cost: likewise, to score a query with the whole gallery and rank it, queries of both directions together.
        members: of tasks that are trained together, each one's own, by its name.
        item_bytes: what the embeddings of an image or video take, zero vectors that fill up sets not counted; NaN for a
            model that has none.
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
    """One of several tasks that are trained together."""

    run: Run
    """What it would be alone, with the settings of the joint run; `jointly` says of which."""
    adapter: TaskAdapter
    """Its own."""
    model: nn.Module
    """Its part of the model."""


class TaskAdapter(Protocol):
    """What a task's batches mean and how it is scored. The loop knows no task.

    Adapters derive from this class, and from those of `tasks.abilities` that they support. The registry builds one
    from a run's `task` spec as `Adapter(run, assets=None, **parameters)`: without assets for a new run, with those of
    a checkpoint for a trained model, whose data are opened on first use.
    """

    primary: Metric
    """The metric that chooses the best epoch; its chance level is that of a split, and an evaluation's to fill in."""
    dev_protocol: str
    """The protocol that chooses the best epoch, on the `val` split."""
    assets: dict[str, Any]
    """What a model is rebuilt from beside run and weights, as plain JSON."""
    unused: tuple[str, ...] = ()
    """Settings of a run that the task ignores, such as `("fusion", "data.sample")`. A run that changes one of them is
    refused before it starts."""

    uses_all_weights: bool = True
    """False where a batch leaves some weights without a gradient; these stay as they are in that step."""

    @abstractmethod
    def describe(self) -> Mapping[str, str]:
        """Return what is recorded about the data, such as digests and counts.

        It follows from the data alone: a run is not resumed, scored or searched where it has changed.
        """

    def sources(self) -> Sequence[Source]:
        """Return the data that a run reads, by which tracking filters; none if unknown."""
        return ()

    @abstractmethod
    def data(self, split: str) -> Dataset:
        """Return the samples of a split."""

    def check_training(self) -> None:
        """Refuse a run that cannot train, before it starts; other checks are for trained models too.

        Raises:
            InputError: such as a training split of fewer samples than a batch.
        """

    @abstractmethod
    def model(self, *, pretrained: bool = True) -> nn.Module:
        """Return a new model; if `pretrained`, with published weights in the parts that have them."""

    @abstractmethod
    def loss(self, model: Callable[..., Any], batch: dict[str, Tensor], *, epoch: float) -> dict[str, Tensor]:
        """Return scalars: `loss` is minimised, every other entry is logged.

        Args:
            model: to be called as a whole, since DDP may be wrapped around it.
            batch: this worker's share of the batch.
            epoch: epochs trained so far, as a fraction.
        """

    def check_protocol(self, protocol: str, split: str) -> None:
        """Refuse a protocol that does not fit a split, before its scores are computed.

        Raises:
            InputError: such as a protocol for another size of split, or files that it needs and that are missing.
        """

    @abstractmethod
    def evaluate(self, model: nn.Module, split: str, protocol: str) -> Evaluation:
        """Score a split under a protocol.

        Raises:
            InputError: no such split or protocol, or a split that the protocol does not fit.
        """

    def members(self, model: nn.Module) -> Mapping[str, Member]:
        """Return the tasks that were trained together in a model, by name; none of a task by itself.

        Each is recorded as a run of its own, with its model and its evaluation of `Evaluation.members`.
        """
        return {}
