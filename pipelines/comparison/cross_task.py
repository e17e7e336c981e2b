"""Task x aggregator: the primary metric of every group, and ranks over tasks with their uncertainty.

A column is one task, data set and protocol in one recipe and model, so that numbers of different protocols are never
in one column. Rows are ranked by the mean over columns of chance-normalised scores (0 for chance, 100 for the best
possible), as an RSUM and an accuracy cannot be added. An aggregator gets a rank only if every counting column has it:
means over other columns would be of easier or harder tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pandas as pd

from polypool.pipelines.comparison.rows import Group, Row
from polypool.pipelines.comparison.statistics import (
    Difference,
    Joint,
    mean_of,
    rank_intervals,
    with_baseline,
    with_best,
)


@dataclass(frozen=True, kw_only=True)
class Column:
    """The rows of a group that share a recipe and a model, by aggregator.

    Attributes:
        group: of the rows.
        recipe: empty if the group has only one.
        model: empty for the usual one.
        rows: by aggregator.
    """

    group: Group
    recipe: str = ""
    model: str = ""
    rows: dict[str, Row]

    @property
    def title(self) -> tuple[str, ...]:
        """The lines above the column."""
        group = self.group
        lines = (group.task, group.dataset, group.protocol, self.recipe, self.model and f"in {self.model}")
        return (*(line for line in lines if line), group.metric.name)

    @property
    def best(self) -> Row:
        """The row with the best mean."""
        return next(row for row in self.group.rows if row in self.rows.values())

    @cached_property
    def from_best(self) -> Mapping[str, Difference]:
        """Difference of each row from the best of the others in the column, by label; without untested rows."""
        judged, sign = self.group.judged, self.group.metric.sign
        return self._among(judged.best, partial(with_best, sign=sign)) if judged else {}

    @cached_property
    def from_baseline(self) -> Mapping[str, Difference]:
        """Difference of each other row from the baseline, by label; empty without the baseline or tests."""
        judged = self.group.judged
        if not judged or not judged.baseline or not self.baseline:
            return {}
        return self._among(judged.against, partial(with_baseline, baseline=judged.baseline))

    def _among(
        self, whole: Mapping[str, Difference], differences: Callable[[Joint], Mapping[str, Difference]]
    ) -> Mapping[str, Difference]:
        """Return `whole` if the column has all tested rows of the group, else the differences among its own."""
        judged = self.group.judged
        assert judged is not None
        labels = [row.label for row in self.rows.values() if row.label in judged.labels]
        if len(labels) == len(judged.labels):
            return whole
        return differences(judged.joint.select(labels)) if judged.joint and len(labels) > 1 else {}

    @property
    def baseline(self) -> str:
        """The aggregator of the baseline; empty if the column has none."""
        label = self.group.judged.baseline if self.group.judged else ""
        return next((name for name, row in self.rows.items() if label and row.label == label), "")

    def joint(self, aggregators: Sequence[str]) -> Joint | None:
        """Return the normalised scores of aggregators with their variances; None if one was not tested."""
        judged = self.group.judged
        labels = [self.rows[name].label for name in aggregators]
        if judged is None or judged.joint is None or not {*labels} <= {*judged.labels}:
            return None
        zero, one = self.normalised(0.0), self.normalised(1.0)
        return replace(judged.joint.select(labels).scaled(one - zero, plus=zero), labels=tuple(aggregators))

    def normalised(self, value: float) -> float:
        """Return a value scaled to 0 for chance and 100 for the best; if these are unknown, sign times value."""
        metric = self.group.metric
        score = metric.chance_normalised(value)
        return metric.sign * value if math.isnan(score) else score

    @property
    def unable(self) -> str:
        """Reason why the column cannot count in ranks; empty if it can."""
        if 2 * sum(row.own_protocol for row in self.rows.values()) < len(self.rows):
            return "its runs chose another protocol, which counts"
        if math.isnan(self.chance_normalised(self.best.variant)):
            return f"chance or the best possible value of {self.group.metric.name} is not known"
        return ""

    def value(self, aggregator: str) -> float:
        """Return the mean of the primary metric; NaN if unknown."""
        row = self.rows.get(aggregator)
        return math.nan if row is None else self.group.mean(row)

    def chance_normalised(self, aggregator: str) -> float:
        """Return `value` scaled to 0 for chance and 100 for the best possible; NaN if one of them is unknown."""
        return self.group.metric.chance_normalised(self.value(aggregator))


@dataclass(frozen=True, kw_only=True)
class CrossTaskTable:
    """Columns, and ranks over them.

    Attributes:
        columns: of groups with the same tuning.
        tuned: the tuning in words; empty without one.
    """

    columns: tuple[Column, ...]
    tuned: str = ""

    @cached_property
    def aggregators(self) -> tuple[str, ...]:
        """All aggregators: the baseline; those with a mean, the best first; then those in most columns, by name."""
        names = {name for column in self.columns for name in column.rows}

        def key(name: str) -> tuple[bool, float, int, str]:
            had = sum(name in column.rows for column in self.columns)
            return name != self.baseline, -self.means.get(name, -math.inf), -had, name

        return tuple(sorted(names, key=key))

    @cached_property
    def baseline(self) -> str:
        """The aggregator that columns have as a baseline, if they have the same one; empty for none."""
        names = {column.baseline for column in self.columns} - {""}
        return names.pop() if len(names) == 1 else ""

    @cached_property
    def counting(self) -> tuple[Column, ...]:
        """The columns in ranks: a single one, or those with chance, best possible score and enough rows.

        Their runs chose the protocol, and they have at least half as many aggregators as the largest column.
        """
        if len(self.columns) == 1:
            return self.columns
        able = [column for column in self.columns if not column.unable]
        most = max((len(column.rows) for column in able), default=0)
        return tuple(column for column in able if 2 * len(column.rows) >= most)

    @cached_property
    def complete(self) -> tuple[str, ...]:
        """The aggregators that every counting column has, by name."""
        names = {name for column in self.counting for name in column.rows}
        return tuple(sorted(n for n in names if not any(math.isnan(c.value(n)) for c in self.counting)))

    @cached_property
    def means(self) -> dict[str, float]:
        """The mean normalised score of each complete aggregator over the counting columns."""
        return {n: float(np.mean([c.normalised(c.value(n)) for c in self.counting])) for n in self.complete}

    @cached_property
    def ranks(self) -> dict[str, tuple[int, int]]:
        """The ends of the simultaneous 95 % interval of the rank of each complete aggregator by `means`.

        Empty for fewer than two aggregators, or if a column is not tested.
        """
        judged = [column.group.judged for column in self.counting]
        if len(self.complete) < 2 or not all(judged):
            return {}
        joints = [column.joint(self.complete) for column in self.counting]
        if known := [joint for joint in joints if joint]:
            return rank_intervals(mean_of(known)) if len(known) == len(joints) else {}
        labels = {name: self.counting[0].rows[name].label for name in self.complete}
        recorded = judged[0].ranks if judged[0] else {}
        return {name: recorded[label] for name, label in labels.items() if label in recorded}

    @cached_property
    def weights(self) -> dict[str, float]:
        """The largest number of parameters of each complete aggregator over the counting columns, if known."""
        return self._costs("weights").max().dropna().to_dict()

    @cached_property
    def steps(self) -> dict[str, float]:
        """The cost of a training step of each complete aggregator, as a multiple of its column's least.

        The geometric mean over the counting columns, without aggregators that lack a positive cost in one of them;
        empty if a column has no cost at all.
        """
        costs = self._costs("step")
        costs = costs.where(costs > 0)
        if costs.empty or costs.isna().all(axis="columns").any():
            return {}
        logs = costs.map(math.log)
        means = logs.sub(logs.min(axis="columns"), axis="index").mean(skipna=False)
        return means.map(math.exp).dropna().to_dict()

    def _costs(self, cost: str) -> pd.DataFrame:
        """Return a cost of the complete aggregators, with a row for each counting column."""
        return pd.DataFrame(
            [{name: column.rows[name].cost(cost) for name in self.complete} for column in self.counting]
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Columns and aggregators that count in no rank, with reasons, and columns without the baseline."""
        notes = [
            f"{' · '.join(column.title[:-1])} counts in no rank: "
            + (column.unable or "it has fewer than half of the aggregators of the largest column")
            for column in self.columns
            if column not in self.counting
        ]
        if self.baseline:
            without = [" · ".join(of.title[:-1]) for of in self.columns if not of.baseline]
            notes += [f"{title} has no tested row {self.baseline}" for title in without]
        left = [name for name in self.aggregators if name not in self.complete]
        if not self.complete:
            notes.append("no ranks: no aggregator is in every column that counts")
        elif left:
            notes.append(f"without rank, since a column lacks them: {', '.join(left)}")
        return tuple(notes)


def tables_of(groups: Sequence[Group]) -> list[CrossTaskTable]:
    """Return a table for each tuning, untuned rows first; for each of its groups if they are of one task and data set.

    Rows of the latter are named by their aggregators if these are distinct, otherwise by their labels.
    """
    found = []
    for tuned in sorted({group.tuned for group in groups}):
        of_tuning = [group for group in groups if group.tuned == tuned]
        if (crossed := cross_task_table(of_tuning)) is not None:
            found.append(crossed)
            continue
        for group in of_tuning:
            names = [row.aggregator or row.label for row in group.rows]
            names = names if len({*names}) == len(names) else [row.label for row in group.rows]
            column = Column(group=group, rows=dict(zip(names, group.rows, strict=True)))
            found.append(CrossTaskTable(columns=(column,), tuned=tuned))
    return found


def cross_task_table(groups: Sequence[Group]) -> CrossTaskTable | None:
    """Return the table of groups with the same tuning; None for a single task and data set, or without aggregators.

    Scores on other data than the training set are left out.
    """
    groups = [group for group in groups if not group.trained_on]
    if len({(group.task, group.dataset) for group in groups}) < 2:
        return None
    columns = []
    for group in groups:
        rows = [row for row in group.rows if row.aggregator]
        several = len({row.recipe for row in rows}) > 1
        for recipe, model in sorted({(row.recipe, row.model) for row in rows}):
            of = {row.variant: row for row in rows if (row.recipe, row.model) == (recipe, model)}
            columns.append(Column(group=group, recipe=recipe * several, model=model, rows=of))
    return CrossTaskTable(columns=tuple(columns), tuned=groups[0].tuned) if columns else None
