"""Runs as groups of comparable rows: one task, one data set, one protocol."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from infra.tracking import RunRecord
from pipelines.comparison.statistics.significance import Judged
from tasks.base import Metric

SECONDS = Metric(name="train s", higher_is_better=False, unit="s")
"""How long a run trained, which every table shows last."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Means over the runs of a row; NaN where it is not known.

    Attributes:
        weights: parameters of all aggregators.
        step: of a training step, in `infra.compute.cost.UNIT`.
        embed: of embedding an item and its texts, or of answering a question, in evaluation; likewise.
        query: of scoring a query with the test split and ranking it; likewise.
        bytes: of the embeddings of an image or video.
    """

    weights: float = math.nan
    step: float = math.nan
    embed: float = math.nan
    query: float = math.nan
    bytes: float = math.nan


@dataclass(frozen=True, kw_only=True)
class Row:
    """One aggregator: the values of every metric, one a run, in the order of `seeds`.

    Attributes:
        label: what the row of a group is called.
        aggregator: that alone, and the text's where it differs; empty for what is no trained run, such as an ensemble.
        specs: of the aggregator, and of the text's where it differs; empty where a row was read from a file.
        recipe, model: what the aggregator was trained in.
        settings: those in which the runs are not like most others of recipe and model.
        own_protocol: whether at least half of the runs chose this protocol, and were not only scored under it as well.
        seeds: one a run.
        values: by metric.
        published: by metric, what the paper reports that the recipe follows; empty where the row is not the recipe's.
        costs: of a row that was read from a file; None where its runs say them.
        runs: the runs themselves.
    """

    label: str
    aggregator: str = ""
    specs: tuple[str, ...] = ()
    recipe: str = ""
    model: str = ""
    settings: str = ""
    own_protocol: bool = True
    seeds: tuple[str, ...]
    values: Mapping[str, tuple[float, ...]]
    published: Mapping[str, float] = field(default_factory=dict)
    costs: Costs | None = None
    runs: tuple[RunRecord, ...] = ()

    @property
    def variant(self) -> str:
        """The aggregator with its settings, where they differ; empty where there is no aggregator."""
        return ", ".join(part for part in (self.aggregator, self.settings) if part) if self.aggregator else ""

    def mean(self, metric: str) -> float:
        """Return the mean over runs; NaN where a run lacks the metric."""
        values = self.values.get(metric, ())
        return statistics.fmean(values) if len(values) == len(self.seeds) else math.nan

    def deviation(self, metric: str) -> float:
        """Return the sample standard deviation over runs; NaN for one run."""
        values = self.values.get(metric, ())
        return statistics.stdev(values) if len(values) == len(self.seeds) > 1 else math.nan


@dataclass(frozen=True, kw_only=True)
class Group:
    """Rows that may be compared: one task, one data set, one protocol; the best row first.

    Attributes:
        task, dataset, protocol: what they share.
        rows: an aggregator each.
        metric: what orders them; None where no run says what its metrics mean, and the rows are ordered by name.
        metrics: all that the runs describe, in the order of tables.
        published: which numbers the recipes of its runs aim at, a sentence each.
        usual: settings of the rows that name none, where others name them, a sentence each.
        judged: which differences between the rows are more than luck, where their queries were compared.
    """

    task: str
    dataset: str
    protocol: str
    rows: tuple[Row, ...]
    metric: Metric | None = None
    metrics: tuple[Metric, ...] = ()
    published: tuple[str, ...] = ()
    usual: tuple[str, ...] = ()
    judged: Judged | None = None

    @property
    def title(self) -> str:
        """What is compared."""
        return f"{self.task} · {self.dataset} · {self.protocol}"

    @property
    def columns(self) -> tuple[str, ...]:
        """The metrics shown, in order: the deciding one among them, or all by name where none is described."""
        had = {name for row in self.rows for name in row.values}
        if self.metric is None:
            return (*sorted(had - {SECONDS.name}), *({SECONDS.name} & had))
        names = [
            metric.name for metric in (*self.metrics, SECONDS) if metric.in_tables and metric.name in had
        ]
        return tuple(names) if self.metric.name in names else (self.metric.name, *names)

    def mean(self, row: Row) -> float:
        """Return a row's mean of the deciding metric; NaN where it has none."""
        return row.mean(self.metric.name) if self.metric else math.nan

    def deviation(self, row: Row) -> float:
        """Return a row's sample standard deviation of the deciding metric; NaN where it has none."""
        return row.deviation(self.metric.name) if self.metric else math.nan

    def chance_normalised(self, row: Row) -> float:
        """Return where a row's mean lies between chance, 0, and the best possible, 100; NaN where one is not known."""
        return self.metric.chance_normalised(self.mean(row)) if self.metric else math.nan

    def decimals(self, name: str) -> int:
        """Return how many decimals of a metric are shown: 1 where values reach 10, 2 beyond 1, 3 for fractions."""
        if name not in self._decimals:
            known = [metric for metric in (*self.metrics, self.metric) if metric and metric.name == name]
            values = [abs(x) for metric in known for x in (metric.best, metric.chance) if not math.isnan(x)]
            values += [abs(value) for row in self.rows for value in row.values.get(name, ())]
            self._decimals[name] = decimals(max(values, default=math.inf))
        return self._decimals[name]

    @cached_property
    def _decimals(self) -> dict[str, int]:
        """Those that are known: every number of a table asks, and they follow from all of them."""
        return {}

    def number(self, value: float) -> str:
        """Return a value of the deciding metric as text."""
        return f"{value:.{self.decimals(self.metric.name)}f}"


def decimals(largest: float) -> int:
    """Return how many decimals are shown of values up to `largest`."""
    return 1 if largest >= 10 else 2 if largest > 1 else 3


def spoken(metric: Metric) -> str:
    """Name a metric with its unit, and its direction where low values are good."""
    name = metric.name + (f" in {metric.unit}" if metric.unit else "")
    return name if metric.higher_is_better else f"{name}, lower is better"


def ordered(rows: Iterable[Row], metric: Metric | None) -> tuple[Row, ...]:
    """Sort rows, the best first and those without the metric last; by name where there is no metric."""

    def key(row: Row) -> tuple[bool, float, str]:
        mean = row.mean(metric.name) if metric else math.nan
        worse = -mean if metric and metric.higher_is_better else mean
        return math.isnan(mean), 0.0 if math.isnan(mean) else worse, row.label

    return tuple(sorted(rows, key=key))
