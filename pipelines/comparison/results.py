"""Results of a comparison: a record for each metric of each row, from groups of runs and back to groups.

Records of the metric that orders the rows hold the difference from the best row, too.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polypool.infra.errors import InputError
from polypool.infra.tracking import RunRecord
from polypool.infra.tracking.tracker import COMMAND
from polypool.pipelines.comparison.groups import SECONDS, Costs, Group, Row
from polypool.pipelines.comparison.row_settings import DIGESTS
from polypool.pipelines.comparison.statistics.significance import Difference, Judged
from polypool.tasks.adapter import Metric

APART = "; "
"""Separates several values in one field."""
Number = float | None
_COSTS = {
    "weights": "weights",
    "step": "step_cost",
    "embed": "embed_cost",
    "query": "query_cost",
    "bytes": "item_bytes",
}
"""The field of each of `Costs`."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One metric of one row. Unknown numbers are None, unknown texts empty.

    Attributes:
        task, dataset, protocol: of the group.
        row: its label.
        aggregator, recipe, model, settings: of the runs; settings in which they differ from most others of the group.
        usual: the settings of those others, in words.
        metric, unit, higher_is_better, best, chance: of the metric.
        decides: whether rows are ordered and judged by the metric.
        own_protocol: whether the runs chose this protocol, and were not only scored under it as well.
        seeds, values: of each run, in the same order.
        mean, deviation: over runs; sample standard deviation.
        low, high: 95 % interval of the mean, over seeds and queries; over queries alone for one seed.
        chance_normalised: 0 for chance, 100 for the best possible.
        published: in the paper that the recipe follows.
        against: the best row; empty for itself and if nothing was judged.
        difference, difference_low, difference_high: from that row, with its uncorrected 95 % interval.
        p: corrected by Holm for all `pairs` of the table.
        over_seeds: whether seeds were judged; else all of these are over queries alone.
        queries: the units of queries, such as `1,064 images with their captions`.
        weights: parameters of the aggregators.
        step_cost, embed_cost, query_cost: in `polypool.infra.compute.cost.UNIT`.
        item_bytes: of the embeddings of an image or video.
        train_seconds: of training.
        run_ids, commits, data, command, machines: of the runs; `+` after a commit marks changed files; digests of data.
        compared_by: the command that made this record.
        table: its name in a file of several tables.
    """

    task: str
    dataset: str
    protocol: str
    row: str
    aggregator: str
    recipe: str
    model: str
    settings: str
    usual: str
    metric: str
    decides: bool
    unit: str
    higher_is_better: bool
    best: Number
    chance: Number
    own_protocol: bool
    seeds: str
    values: str
    mean: Number
    deviation: Number
    low: Number = None
    high: Number = None
    chance_normalised: Number = None
    published: Number = None
    against: str = ""
    difference: Number = None
    difference_low: Number = None
    difference_high: Number = None
    p: Number = None
    over_seeds: bool | None = None
    pairs: int = 0
    queries: str = ""
    weights: Number = None
    step_cost: Number = None
    embed_cost: Number = None
    query_cost: Number = None
    item_bytes: Number = None
    train_seconds: Number = None
    run_ids: str = ""
    commits: str = ""
    data: str = ""
    command: str = ""
    compared_by: str = ""
    machines: str = ""
    table: str = ""

    def __post_init__(self) -> None:
        try:
            numbers = [*map(float, self.values.split(APART))] if self.values else []
        except ValueError:
            raise InputError(
                f"values must be numbers with {APART!r} between them, not {self.values!r}"
            ) from None
        if len(numbers) not in (0, len(self.seeds.split(APART))):
            raise InputError(f"{len(numbers)} values for the seeds {self.seeds!r}, expected one for each")


def results(groups: Sequence[Group], *, compared_by: str = "") -> list[Result]:
    """Return the records of groups in the order of their tables; groups whose metric is unknown have none."""
    return [
        record
        for group in groups
        if group.metric is not None
        for row in group.rows
        for record in _of_row(group, row, compared_by)
    ]


def _of_row(group: Group, row: Row, compared_by: str) -> Iterable[Result]:
    shared: dict[str, Any] = {
        "task": group.task,
        "dataset": group.dataset,
        "protocol": group.protocol,
        "row": row.label,
        "aggregator": row.aggregator,
        "recipe": row.recipe,
        "model": row.model,
        "settings": row.settings,
        "usual": APART.join(group.usual),
        "own_protocol": row.own_protocol,
        "seeds": APART.join(row.seeds),
        **{field: _known(getattr(row.costs, name)) for name, field in _COSTS.items()},
        "train_seconds": _known(row.mean(SECONDS.name)),
        **_origin(row.runs),
        "compared_by": compared_by,
    }
    described = {metric.name: metric for metric in (group.ranked_by, *group.metrics)}
    for name in group.columns:
        metric = described.get(name)
        if name == SECONDS.name or metric is None:
            continue
        decides = name == group.ranked_by.name
        yield Result(
            **shared,
            metric=name,
            decides=decides,
            unit=metric.unit,
            higher_is_better=metric.higher_is_better,
            best=_known(metric.best),
            chance=_known(metric.chance),
            values=APART.join(f"{value:.10g}" for value in row.values.get(name, ())),
            mean=_known(row.mean(name)),
            deviation=_known(row.deviation(name)),
            chance_normalised=_known(metric.chance_normalised(row.mean(name))),
            published=row.published.get(name),
            **(_judged(group.judged, row) if decides and group.judged else {}),
        )


def _judged(judged: Judged, row: Row) -> dict[str, Any]:
    low, high = judged.intervals.get(row.label, (math.nan, math.nan))
    found: dict[str, Any] = {
        "low": _known(low),
        "high": _known(high),
        "queries": judged.units,
        "pairs": judged.tests,
    }
    difference = judged.difference(row.label, judged.labels[0])
    if difference is None:
        return found
    return found | {
        "against": judged.labels[0],
        "difference": _known(difference.value),
        "difference_low": _known(difference.low),
        "difference_high": _known(difference.high),
        "p": _known(difference.p),
        "over_seeds": difference.over_seeds,
    }


def _origin(runs: Sequence[RunRecord]) -> dict[str, str]:
    tags = [run.tags for run in runs]
    commits = [of.get("git_commit", "") + "+" * (of.get("git_dirty") == "true") for of in tags]
    data = [f"{name.removeprefix('data.')}={of[name]}" for of in tags for name in DIGESTS if of.get(name)]
    return {
        "run_ids": APART.join(run.run_id for run in runs),
        "commits": _each(commits),
        "data": _each(data),
        "command": _each(of.get(COMMAND, "") for of in tags),
        "machines": _each(of.get("machine", "") for of in tags),
    }


def _each(values: Iterable[str]) -> str:
    return APART.join(dict.fromkeys(value for value in values if value))


def _known(value: float) -> Number:
    return None if math.isnan(value) else float(f"{value:.10g}")


def groups_of(records: Sequence[Result]) -> tuple[Group, ...]:
    """Return the groups of records, without runs, and with the differences from the best row alone.

    Raises:
        InputError: records of a table are missing.
    """
    key = operator.attrgetter("task", "dataset", "protocol")
    return tuple(_group(of) for of in _gathered(records, key))


def _gathered(records: Iterable[Result], key: Callable[[Result], object]) -> list[list[Result]]:
    """Return records by their keys, in the order in which these come first."""
    by_key: dict[object, list[Result]] = {}
    for record in records:
        by_key.setdefault(key(record), []).append(record)
    return [*by_key.values()]


def _group(records: Sequence[Result]) -> Group:
    metrics = {record.metric: _metric(record) for record in records}
    deciding = [record for record in records if record.decides]
    if not deciding:
        raise InputError(
            f"no metric of {records[0].task} · {records[0].dataset} decides; write the results anew"
        )
    first = deciding[0]
    return Group(
        task=first.task,
        dataset=first.dataset,
        protocol=first.protocol,
        rows=tuple(_row(of) for of in _gathered(records, operator.attrgetter("row"))),
        metric=metrics[first.metric],
        metrics=tuple(metrics.values()),
        usual=tuple(first.usual.split(APART)) if first.usual else (),
        judged=_judged_of(deciding),
    )


def _metric(record: Result) -> Metric:
    return Metric(
        name=record.metric,
        higher_is_better=record.higher_is_better,
        best=_number(record.best),
        chance=_number(record.chance),
        unit=record.unit,
    )


def _row(records: Sequence[Result]) -> Row:
    first = records[0]
    values = {of.metric: tuple(map(float, of.values.split(APART))) for of in records if of.values}
    return Row(
        label=first.row,
        aggregator=first.aggregator,
        recipe=first.recipe,
        model=first.model,
        settings=first.settings,
        own_protocol=first.own_protocol,
        seeds=tuple(first.seeds.split(APART)),
        values=values,
        published={of.metric: of.published for of in records if of.published is not None},
        costs=Costs(**{name: _number(getattr(first, field)) for name, field in _COSTS.items()}),
    )


def _judged_of(records: Sequence[Result]) -> Judged | None:
    compared = [record for record in records if record.against]
    if not compared:
        return None
    best = compared[0].against
    return Judged(
        units=compared[0].queries,
        labels=(best, *(record.row for record in compared)),
        tests=compared[0].pairs,
        intervals={of.row: (_number(of.low), _number(of.high)) for of in records},
        pairs={
            (record.row, best): Difference(
                value=_number(record.difference),
                low=_number(record.difference_low),
                high=_number(record.difference_high),
                p=_number(record.p),
                over_seeds=bool(record.over_seeds),
            )
            for record in compared
        },
    )


def _number(value: Number) -> float:
    return math.nan if value is None else value


def columns(records: Sequence[Result]) -> Mapping[str, list[object]]:
    """Return records by columns."""
    names = [field.name for field in dataclasses.fields(Result)]
    return {name: [getattr(record, name) for record in records] for name in names}
