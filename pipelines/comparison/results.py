"""The numbers of a comparison as records, which leave as CSV or Parquet with what they came from, and are read back.

A record is one metric of one row. Those of the metric that decides say how far the row is from the best, too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from infra.errors import InputError
from infra.tracking import RunRecord
from infra.tracking.tracker import COMMAND
from pipelines.comparison.runs.costs import costs_of
from pipelines.comparison.runs.groups import SECONDS, Costs, Group, Row
from pipelines.comparison.runs.settings import DIGESTS
from pipelines.comparison.statistics.significance import Difference, Judged
from tasks.base import Metric

APART = "; "
"""What stands between several values in one field."""
Number = float | None


@dataclass(frozen=True, kw_only=True)
class Result:
    """One metric of one row. What is not known is None, or empty where it is text.

    Attributes:
        task, dataset, protocol: the table it stands in.
        row: its name there.
        aggregator, recipe, model, settings: what the runs were, and where these differ from most others of the table.
        usual: what those have of such settings, in words.
        metric, unit, higher_is_better, best, chance: what is measured.
        decides: whether it is the metric that rows are ordered and judged by.
        own_protocol: whether the runs chose this protocol, and were not only scored under it as well.
        seeds, values: of each run, in one order.
        mean, deviation: over runs; sample standard deviation.
        low, high: the 95 % interval of the mean, over seeds and queries; over queries alone for one seed.
        chance_normalised: 0 by chance, 100 at best.
        published: what the paper reports that the recipe follows.
        against: the best row, from which the difference is; empty for that itself, and where nothing was judged.
        difference, difference_low, difference_high: with its 95 % interval, not corrected.
        p: corrected by Holm for all `pairs` of the table.
        over_seeds: whether seeds could be judged; else all of these are over queries alone.
        queries: what queries were gathered by, such as `1,064 images with their captions`.
        weights: parameters of the aggregators.
        step_cost, embed_cost, query_cost: in `infra.compute.cost.UNIT`.
        item_bytes: of the embeddings of an image or video.
        train_seconds: that passed in training.
        run_ids, commits, data, command, machines: of the runs; `+` where files differed from a commit; digests of the
            data; what they were started on.
        compared_by: the command that made this record.
        table: which of a file's tables it is of; empty in a file of one.
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
        """Refuse values that are not one number for each seed, or for none."""
        try:
            numbers = [*map(float, self.values.split(APART))] if self.values else []
        except ValueError:
            raise InputError(
                f"values must be numbers with {APART!r} between them, not {self.values!r}"
            ) from None
        if len(numbers) not in (0, len(self.seeds.split(APART))):
            raise InputError(f"{len(numbers)} values for the seeds {self.seeds!r}, expected one for each")


def results(groups: Sequence[Group], *, compared_by: str = "") -> list[Result]:
    """Return the records of groups, in the order of their tables; groups whose metric is not known have none."""
    return [
        record
        for group in groups
        if group.metric is not None
        for row in group.rows
        for record in _of_row(group, row, compared_by)
    ]


def _of_row(group: Group, row: Row, compared_by: str) -> Iterable[Result]:
    shared = {
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
        **_costs(row),
        **_origin(row.runs),
        "compared_by": compared_by,
    }
    described = {metric.name: metric for metric in (group.metric, *group.metrics)}
    for name in group.columns:
        metric = described.get(name)
        if name == SECONDS.name or metric is None:
            continue
        decides = name == group.metric.name
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


def _costs(row: Row) -> dict[str, Number]:
    costs = costs_of(row)
    return {
        "weights": _known(costs.weights),
        "step_cost": _known(costs.step),
        "embed_cost": _known(costs.embed),
        "query_cost": _known(costs.query),
        "item_bytes": _known(costs.bytes),
        "train_seconds": _known(row.mean(SECONDS.name)),
    }


def _judged(judged: Judged, row: Row) -> dict[str, object]:
    low, high = judged.intervals.get(row.label, (math.nan, math.nan))
    found = {"low": _known(low), "high": _known(high), "queries": judged.units, "pairs": judged.tests}
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
    """Return what runs came from; several values of one thing apart, each once."""
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
    """Return the groups that records are of, as far as these say: without runs, and pairs but those with the best.

    Raises:
        InputError: records of a table are missing.
    """
    tables: dict[tuple[str, str, str], list[Result]] = {}
    for record in records:
        tables.setdefault((record.task, record.dataset, record.protocol), []).append(record)
    return tuple(_group(of) for of in tables.values())


def _group(records: Sequence[Result]) -> Group:
    rows: dict[str, list[Result]] = {}
    for record in records:
        rows.setdefault(record.row, []).append(record)
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
        rows=tuple(_row(of) for of in rows.values()),
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
        costs=Costs(
            weights=_number(first.weights),
            step=_number(first.step_cost),
            embed=_number(first.embed_cost),
            query=_number(first.query_cost),
            bytes=_number(first.item_bytes),
        ),
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
        pairs={(record.row, best): _difference(record) for record in compared},
    )


def _difference(record: Result) -> Difference:
    return Difference(
        value=_number(record.difference),
        low=_number(record.difference_low),
        high=_number(record.difference_high),
        p=_number(record.p),
        over_seeds=bool(record.over_seeds),
    )


def _number(value: Number) -> float:
    return math.nan if value is None else value


def columns(records: Sequence[Result]) -> Mapping[str, list[object]]:
    """Return records as columns."""
    return {
        field.name: [getattr(record, field.name) for record in records]
        for field in dataclasses.fields(Result)
    }
