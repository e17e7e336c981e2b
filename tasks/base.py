"""The contract between a task and the loop: what a batch means, its loss, its scores."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from infra.tracking.record import Source

if TYPE_CHECKING:  # what reads results alone, such as `compare`, waits for no torch
    from torch import Tensor, nn

    from infra.data import Dataset
    from tasks.run import Run

Score = Callable[[slice, slice], "Tensor"]
"""`score(items, texts) -> (items, texts)`: any block of a split's scores, `(V, T)`; higher is more alike."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number that an evaluation gives, and what it means.

    Attributes:
        name: its key in `Evaluation.metrics`, without the protocol.
        higher_is_better: False for errors, losses, ranks.
        best: the best possible value; NaN where there is none or it is not known.
        chance: what a model that has learnt nothing reaches on average, on the split that was scored; NaN where it is
            not known.
        unit: what a value is counted in, such as `%`; empty for none.
        in_tables: whether tables show it unasked; they can be sorted by it in any case.
    """

    name: str
    higher_is_better: bool = True
    best: float = math.nan
    chance: float = math.nan
    unit: str = ""
    in_tables: bool = True

    def better(self, value: float, than: float | None) -> bool:
        """Whether `value` beats the best so far; anything beats None."""
        return than is None or (value > than if self.higher_is_better else value < than)

    def chance_normalised(self, value: float) -> float:
        """Return where a value lies between chance, 0, and the best possible, 100, whichever of them is larger.

        NaN where one of them is not known, or they are the same.
        """
        if self.best == self.chance:
            return math.nan
        return 100.0 * (value - self.chance) / (self.best - self.chance)


@dataclass(frozen=True, kw_only=True)
class QueryMean:
    """A mean over queries of one kind, such as the captions that were asked with.

    Attributes:
        scores: names of arrays in `Evaluation.per_query`, `(Q,)`; what a query scores is their sum. A query whose
            score is NaN was not asked.
        units: name of the array `(Q,)` of ids that say which unit of the split, such as an image, a query belongs to.
        factor: of the mean, such as 100 where the arrays hold fractions and the metric is in per cent.
        offset: added to it then, such as 1 where ranks are kept from 0 and shown from 1.
    """

    scores: tuple[str, ...]
    units: str
    factor: float = 1.0
    offset: float = 0.0


@dataclass(frozen=True, kw_only=True)
class QueryMetric:
    """How a metric follows from single queries: it is the sum of some means over queries.

    Differences are judged by the units of a split, each with all queries that belong to it.

    Attributes:
        name: of the metric.
        means: what is added up: one mean for an accuracy, one for each direction of retrieval for RSUM.
        units: what the units are called, such as `images with their captions`.
    """

    name: str
    means: tuple[QueryMean, ...]
    units: str


class PictureRecord:
    """Base of the records that pages and figures are drawn from; `pipelines.pages.draw` draws each by its type."""


Pictures = PictureRecord | Mapping[str, bytes] | None
"""What an evaluation leaves to look at: a record, files by name, or nothing."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What scoring a split under a protocol gave.

    Attributes:
        protocol: its name.
        metrics: numbers by name, without the protocol.
        protocol_version: raised whenever what the protocol computes changes, so that numbers of two versions are never
            taken for the same.
        primary: the deciding metric of the protocol, with the chance level of this split; under the adapter's
            `dev_protocol` that is the adapter's own. A split without answers has no value of it in `metrics`.
        others: what the other metrics mean that tables may be sorted by, in the order of tables; a number of `metrics`
            that is not among them is a note about the evaluation, such as a count.
        per_query: arrays that say how each query did, such as ids and ranks.
        query_metrics: which metrics follow from those arrays, and how; differences of no others are judged.
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
    """What a task's batches mean and how it is scored. The loop never asks which task it has.

    Adapters derive from this class, and from those below whose verbs they support. The registry builds one from a
    run's `task` spec as `Adapter(run, assets=None, **parameters)`: a new one without assets, that of a checkpoint with
    them, and then without its data, which is opened when it is first asked for.
    """

    primary: Metric
    """The metric that chooses the best epoch; its chance level is that of a split, and an evaluation's to fill in."""
    dev_protocol: str
    """The protocol that chooses the best epoch, on the `val` split."""
    assets: dict[str, Any]
    """What rebuilds the model beside the run and the weights, as plain JSON."""
    unused: tuple[str, ...] = ()
    """Settings of a run that the task has no use for, such as `("fusion", "data.sample")`. A run that gives one of them
    another value than its default is refused before it starts."""

    uses_all_weights: bool = True
    """False where a batch leaves some weights without a gradient; these stay as they are in that step."""

    @abstractmethod
    def describe(self) -> Mapping[str, str]:
        """Return what tracking notes about the data: digests, counts."""

    def sources(self) -> Sequence[Source]:
        """Return what a run of the task reads, as tracking shows and filters by; nothing where that is not known."""
        return ()

    @abstractmethod
    def data(self, split: str) -> Dataset:
        """Return the samples of a split."""

    def check_training(self) -> None:
        """Refuse a run whose training would come to nothing, before it starts; other checks are for trained models too.

        Raises:
            InputError: such as a training split of fewer samples than a batch.
        """

    @abstractmethod
    def model(self, *, pretrained: bool = True) -> nn.Module:
        """Return a new model, with published weights in the parts that have them unless told otherwise."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: dict[str, Tensor], *, epoch: float) -> dict[str, Tensor]:
        """Return scalars: `loss` is minimised, every other entry is logged.

        Args:
            model: called, not picked apart, since DDP may be wrapped around it.
            batch: this worker's share of the batch.
            epoch: epochs trained so far, as a fraction.
        """

    def check_protocol(self, protocol: str, split: str) -> None:
        """Refuse a protocol that cannot be had of a split, before time is spent on its scores.

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
