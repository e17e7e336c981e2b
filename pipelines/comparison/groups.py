"""Runs as groups of comparable rows: one task, one data set, one protocol."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from infra.tracking import RunRecord
from pipelines.comparison.bootstrap import Bootstrap
from pipelines.comparison.centre import best_possible, chance_normalised
from pipelines.recipe import published_text

METRICS = (
    "rsum",
    *(f"{direction}/R{k}" for direction in ("i2t", "t2i", "v2t", "t2v") for k in (1, 5, 10)),
    *("t2t/R1", "i2i/R1"),
    *("accuracy", "yes_no", "number", "other", "accuracy_2017", "prior_accuracy"),
)
"""What tables show of the metrics that runs have, in this order; the first one sorts the rows."""
SECONDS = "train s"
LOWER_IS_BETTER = ("medr", "meanr", "loss", SECONDS)
_ASIDE = ("chance_rsum", "ties")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One aggregator: the values of every metric, one a run, in the order of `seeds`.

    Attributes:
        label: what the row of a group is called.
        aggregator: the same without recipe and model, which tells it apart from others of its column; empty for what is
            no trained run, such as an ensemble.
        recipe, model: what the aggregator was trained in.
        seeds: one a run.
        values: by metric.
        runs: the runs themselves.
    """

    label: str
    aggregator: str = ""
    recipe: str = ""
    model: str = ""
    seeds: tuple[str, ...]
    values: Mapping[str, tuple[float, ...]]
    runs: tuple[RunRecord, ...] = ()

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
        metric: what orders them.
        rows: an aggregator each.
        bootstrap: which differences between them are real, where their queries were compared.
    """

    task: str
    dataset: str
    protocol: str
    metric: str
    rows: tuple[Row, ...]
    bootstrap: Bootstrap | None = None

    @property
    def title(self) -> str:
        """What is compared."""
        return f"{self.task} · {self.dataset} · {self.protocol}"

    @property
    def chance(self) -> float:
        """What random scores reach of `metric`; NaN where no run noted it."""
        known = [row.mean(f"chance_{self.metric}") for row in self.rows]
        return next((value for value in known if not math.isnan(value)), math.nan)

    @property
    def best_possible(self) -> float:
        """The largest value that `metric` can have; NaN where that is not known."""
        return best_possible(self.metric)

    @property
    def columns(self) -> tuple[str, ...]:
        """The metrics shown: those of `METRICS`, or all that the runs have; the deciding one among them."""
        had = {metric for row in self.rows for metric in row.values}
        shown = [metric for metric in METRICS if metric in had] or sorted(had - {SECONDS, *_ASIDE})
        first = () if self.metric in shown else (self.metric,)
        return (*first, *shown, *((SECONDS,) if SECONDS in had else ()))

    @property
    def published(self) -> tuple[str, ...]:
        """The numbers that the recipes of its runs aim at, a sentence each."""
        runs = [run for row in self.rows for run in row.runs]
        lines = {
            f"{run.tags.get('recipe', '')}: "
            + published_text(json.loads(run.params["published"]), run.params.get("source", ""))
            for run in runs
            if run.params.get("published", "{}") != "{}"
        }
        return tuple(sorted(lines))

    def chance_normalised(self, value: float) -> float:
        """Return where a value lies between chance, 0, and the best possible, 100; NaN where one is not known."""
        return chance_normalised(value, chance=self.chance, best=self.best_possible)


def lower_is_better(metric: str) -> bool:
    """Whether small values of a metric are good ones."""
    return metric.rpartition("/")[2] in LOWER_IS_BETTER


def ordered(rows: Iterable[Row], metric: str) -> tuple[Row, ...]:
    """Sort rows, the best first and those without the metric last."""

    def key(row: Row) -> tuple[bool, float, str]:
        mean = row.mean(metric)
        return math.isnan(mean), mean if lower_is_better(metric) else -mean, row.label

    return tuple(sorted(rows, key=key))
