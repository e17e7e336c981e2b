"""Groups of comparable runs: one task, one data set, one protocol; a row for each aggregator."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from polypool.infra.text_tables import decimals
from polypool.infra.tracking import RunRecord
from polypool.pipelines.comparison.statistics import Judged
from polypool.tasks.adapter import Metric

SECONDS = Metric(name="train s", higher_is_better=False, unit="s")
"""The duration of training, the last column of every table."""
FEWEST_UNITS = 20


@dataclass(frozen=True, kw_only=True)
class Row:
    """One aggregator: for every metric one value per run, in the order of `seeds`.

    Attributes:
        label: the row's name in its group.
        aggregator: its spec, with the text aggregator's if different; empty for untrained rows, such as an ensemble.
        recipe, model: of the training.
        settings: those that differ from most other runs of recipe and model.
        chosen: the tuned settings as text; empty without tuning.
        trials, points: trials of tuning, and points of the space they are from; 0 without tuning.
        own_protocol: whether at least half of the runs chose this protocol, instead of only being scored by it too.
        seeds: one per run.
        values: by metric.
        published: numbers of the reproduced published row by metric, if any.
        costs: by name, NaN if unknown: `weights` of all aggregators, as a mean; `bytes` of the embeddings of an image
            or video; the lowest processor time of the runs, in `polypool.infra.compute.cost.UNIT`, of a training
            `step`, to `embed` an item and its texts or answer a question, and to score a `query` with the test split.
            `most_step`, `most_embed`, `most_query`: the highest. The lowest counts, since other work on a machine
            makes processor time up to twice as much, and never less.
        runs: empty if the row was read from a file.
    """

    label: str
    aggregator: str = ""
    recipe: str = ""
    model: str = ""
    settings: str = ""
    chosen: str = ""
    trials: int = 0
    points: int = 0
    own_protocol: bool = True
    seeds: tuple[str, ...]
    values: Mapping[str, tuple[float, ...]]
    published: Mapping[str, float] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict)
    runs: tuple[RunRecord, ...] = ()

    @property
    def variant(self) -> str:
        """The aggregator with its settings; empty without an aggregator."""
        return ", ".join(part for part in (self.aggregator, self.settings) if part) if self.aggregator else ""

    def cost(self, name: str) -> float:
        return self.costs.get(name, math.nan)

    def mean(self, metric: str) -> float:
        """Return the mean over runs; NaN if a run lacks the metric."""
        values = self.values.get(metric, ())
        return statistics.fmean(values) if len(values) == len(self.seeds) else math.nan

    def deviation(self, metric: str) -> float:
        """Return the sample standard deviation over runs; NaN for one run."""
        values = self.values.get(metric, ())
        return statistics.stdev(values) if len(values) == len(self.seeds) > 1 else math.nan


@dataclass(frozen=True, kw_only=True)
class Group:
    """Rows that may be compared, the best first.

    Attributes:
        task, dataset, protocol: of all rows.
        trained_on: the data set of training, if the scores are on another one; else empty.
        rows: one per aggregator.
        metric: orders the rows.
        metrics: all described metrics, in the order of tables.
        published: the published numbers of its rows, a sentence each.
        usual: settings of the rows whose labels name none, a sentence each.
        judged: results of the tests, if per-query results were read.
        units: number of units of the split, such as images with their captions; 0 if unknown.
        tuned: the tuning of all rows in words; empty without tuning.
    """

    task: str
    dataset: str
    protocol: str
    trained_on: str = ""
    rows: tuple[Row, ...]
    metric: Metric
    metrics: tuple[Metric, ...] = ()
    published: tuple[str, ...] = ()
    usual: tuple[str, ...] = ()
    judged: Judged | None = None
    units: int = 0
    tuned: str = ""

    @property
    def title(self) -> str:
        return group_title(self.task, self.trained_on, self.dataset, self.protocol, self.tuned)

    @property
    def columns(self) -> tuple[str, ...]:
        """The metrics in tables, in order, including the one that orders the rows."""
        had = {name for row in self.rows for name in row.values}
        names = [
            metric.name for metric in (*self.metrics, SECONDS) if metric.in_tables and metric.name in had
        ]
        return tuple(names) if self.metric.name in names else (self.metric.name, *names)

    @property
    def known(self) -> tuple[Row, ...]:
        """The rows with a mean of `metric`."""
        return tuple(row for row in self.rows if not math.isnan(self.mean(row)))

    def mean(self, row: Row) -> float:
        """Return a row's mean of `metric`; NaN if unknown."""
        return row.mean(self.metric.name)

    def deviation(self, row: Row) -> float:
        """Return a row's sample standard deviation of `metric`; NaN if unknown."""
        return row.deviation(self.metric.name)

    def decimals(self, name: str) -> int:
        """Return the number of decimals for a metric, from all of its values."""
        known = [metric for metric in (*self.metrics, self.metric) if metric.name == name]
        values = [abs(x) for metric in known for x in (metric.best, metric.chance) if not math.isnan(x)]
        values += [abs(value) for row in self.rows for value in row.values.get(name, ())]
        return decimals(max(values, default=math.inf))

    def number(self, value: float) -> str:
        """Return a value of `metric` as text."""
        return f"{value:.{self.decimals(self.metric.name)}f}"


def group_title(task: str, trained_on: str, dataset: str, protocol: str = "", tuned: str = "") -> str:
    data = f"trained on {trained_on}, evaluated on {dataset}" if trained_on else dataset
    return " · ".join(part for part in (task, data, protocol, tuned) if part)


def doubts(metric: Metric, scores: Mapping[str, tuple[float, float]], *, units: int) -> Iterator[str]:
    """Yield reasons to distrust scores: a split of few items, scores not above chance.

    Args:
        metric: of the scores.
        scores: ends of each score's 95 % interval, by name.
        units: number of items of the split; 0 if unknown.
    """
    if 0 < units < FEWEST_UNITS:
        yield (
            f"these scores say little: the split has {units} item{'s' * (units > 1)}, and one more right or wrong "
            f"moves them far; take {FEWEST_UNITS} at least"
        )
    if low := [name for name, ends in scores.items() if not metric.above_chance(*ends)]:
        digits = decimals(max(map(abs, (metric.chance, *(end for name in low for end in scores[name])))))
        yield (
            f"not above chance ({metric.name} {metric.chance:.{digits}f}), as far as these queries tell: "
            f"{', '.join(low)}"
        )
