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
from polypool.infra.tracking import COMMAND, RunRecord
from polypool.pipelines.comparison.groups import SECONDS, Costs, Group, Row
from polypool.pipelines.comparison.row_settings import DIGESTS
from polypool.pipelines.comparison.statistics.intervals import Difference
from polypool.pipelines.comparison.statistics.significance import Judged
from polypool.tasks.adapter import Metric

APART = "; "  # separates several values in one field
Number = float | None
_SAME = ("aggregator", "recipe", "model", "settings", "own_protocol", "chosen")
_FIELDS: dict[type, dict[str, str]] = {
    Row: {"label": "row", **{name: name for name in _SAME}},
    Metric: {"name": "metric", **{name: name for name in ("unit", "higher_is_better", "best", "chance")}},
    Difference: {"value": "difference", "low": "difference_low", "high": "difference_high", "p": "p"},
    Costs: {
        "weights": "weights",
        "step": "step_cost",
        "embed": "embed_cost",
        "query": "query_cost",
        "bytes": "item_bytes",
        "most_step": "most_step_cost",
        "most_embed": "most_embed_cost",
        "most_query": "most_query_cost",
    },
}
"""By the names of an object's attributes, the fields of `Result` that hold them."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One metric of one row. Unknown numbers are None, unknown texts empty.

    Attributes:
        task, dataset, protocol: of the group.
        row: its label.
        aggregator, recipe, model, settings: of the runs; settings in which they differ from most others of the group.
        usual: the settings of those others, in words.
        chosen: the settings that tuning chose for the row.
        metric, unit, higher_is_better, best, chance: of the metric.
        decides: whether rows are ordered and judged by the metric.
        own_protocol: whether the runs chose this protocol, and were not only scored under it as well.
        seeds, values: of each run, in the same order.
        mean, deviation: over runs; sample standard deviation.
        low, high: 95 % interval of the mean, over seeds and queries; over queries alone for one seed.
        chance_normalised: 0 for chance, 100 for the best possible.
        published: in the paper that the recipe follows.
        against: the best of the other rows; empty if nothing was judged. If `pairs` were tested, the best row, and
            empty for itself.
        difference, difference_low, difference_high: from that row, with simultaneous 95 % intervals; each interval
            stands alone if `pairs` were tested.
        p: of the row's being the best; if `pairs` were tested, of no difference, corrected for their number.
        may_be_best: whether the row is in the confidence set of the best; None if `pairs` were tested.
        over_seeds: whether seeds were judged; else all of these are over queries alone.
        pairs: 0; in committed results that were judged by all pairs of rows, the number that p is corrected for.
        baseline: the row of `--baseline`; empty without one, and for itself.
        baseline_difference, baseline_low, baseline_high, baseline_p: from that row, with simultaneous 95 % intervals.
        queries: the units of queries, such as `1,064 images with their captions`.
        weights: parameters of the aggregators.
        step_cost, embed_cost, query_cost: in `polypool.infra.compute.cost.UNIT`, the lowest over runs.
        most_step_cost, most_embed_cost, most_query_cost: the highest over runs.
        item_bytes: of the embeddings of an image or video.
        train_seconds: of training.
        run_ids, commits, data, command, machines: of the runs; `+` after a commit marks changed files; digests of data.
        compared_by: the command that made this record.
        table: its name in a file of several tables.
        trained_on: the data set of training, where the scores are on another one.
        tuned: how settings were tuned, in words.
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
    most_step_cost: Number = None
    most_embed_cost: Number = None
    most_query_cost: Number = None
    item_bytes: Number = None
    train_seconds: Number = None
    run_ids: str = ""
    commits: str = ""
    data: str = ""
    command: str = ""
    compared_by: str = ""
    machines: str = ""
    table: str = ""
    chosen: str = ""
    trained_on: str = ""
    tuned: str = ""
    may_be_best: bool | None = None
    baseline: str = ""
    baseline_difference: Number = None
    baseline_low: Number = None
    baseline_high: Number = None
    baseline_p: Number = None

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
    """Return the records of groups in the order of their tables."""
    return [record for group in groups for row in group.rows for record in _of_row(group, row, compared_by)]


def _of_row(group: Group, row: Row, compared_by: str) -> Iterable[Result]:
    shared: dict[str, Any] = {
        "task": group.task,
        "dataset": group.dataset,
        "protocol": group.protocol,
        "trained_on": group.trained_on,
        "tuned": group.tuned,
        **_flat(row),
        "usual": APART.join(group.usual),
        "seeds": APART.join(row.seeds),
        **_flat(row.costs),
        "train_seconds": _known(row.mean(SECONDS.name)),
        **_origin(row.runs),
        "compared_by": compared_by,
    }
    described = {metric.name: metric for metric in (group.metric, *group.metrics)}
    for name in group.columns:
        if name == SECONDS.name or name not in described:
            continue
        metric, decides = described[name], name == group.metric.name
        yield Result(
            **shared,
            **_flat(metric),
            decides=decides,
            values=APART.join(f"{value:.10g}" for value in row.values.get(name, ())),
            mean=_known(row.mean(name)),
            deviation=_known(row.deviation(name)),
            chance_normalised=_known(metric.chance_normalised(row.mean(name))),
            published=row.published.get(name),
            **(_judged(group.judged, row) if decides and group.judged else {}),
        )


def _flat(value: Row | Metric | Costs | Difference) -> dict[str, Any]:
    return {field: _known(getattr(value, name)) for name, field in _FIELDS[type(value)].items()}


def _read(kind: type, record: Result) -> dict[str, Any]:
    """Return the attributes of an object that a record holds, NaN for numbers that are unknown."""
    values = {name: getattr(record, field) for name, field in _FIELDS[kind].items()}
    return {name: math.nan if value is None else value for name, value in values.items()}


def _known(value: Any) -> Any:
    """Return a number to ten digits, None for NaN; anything else as it is."""
    if not isinstance(value, float):
        return value
    return None if math.isnan(value) else float(f"{value:.10g}")


def _judged(judged: Judged, row: Row) -> dict[str, Any]:
    low, high = judged.intervals.get(row.label, (math.nan, math.nan))
    found = {"low": _known(low), "high": _known(high), "queries": judged.units}
    if difference := judged.best.get(row.label):
        first, second, *_ = judged.labels
        found |= {"against": second if row.label == first else first, **_flat(difference)}
        found |= {"over_seeds": difference.over_seeds, "may_be_best": not difference.found}
    if difference := judged.against.get(row.label):
        fields = {"baseline_" + name.removeprefix("difference_"): x for name, x in _flat(difference).items()}
        found |= {"baseline": judged.baseline, **fields}
    return found


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


def groups_of(records: Sequence[Result]) -> tuple[Group, ...]:
    """Return the groups of records, without runs, and with the differences from the best row alone.

    Raises:
        InputError: records of a table are missing.
    """
    return tuple(
        map(
            _group,
            _gathered(records, operator.attrgetter("task", "dataset", "trained_on", "protocol", "tuned")),
        )
    )


def _gathered(records: Iterable[Result], key: Callable[[Result], object]) -> list[list[Result]]:
    """Return records by their keys, in the order in which these come first."""
    by_key: dict[object, list[Result]] = {}
    for record in records:
        by_key.setdefault(key(record), []).append(record)
    return [*by_key.values()]


def _group(records: Sequence[Result]) -> Group:
    metrics = {record.metric: Metric(**_read(Metric, record)) for record in records}
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
        trained_on=first.trained_on,
        tuned=first.tuned,
        rows=tuple(_row(of) for of in _gathered(records, operator.attrgetter("row"))),
        metric=metrics[first.metric],
        metrics=tuple(metrics.values()),
        usual=tuple(first.usual.split(APART)) if first.usual else (),
        judged=_judged_of(deciding),
    )


def _row(records: Sequence[Result]) -> Row:
    first = records[0]
    return Row(
        **_read(Row, first),
        seeds=tuple(first.seeds.split(APART)),
        values={of.metric: tuple(map(float, of.values.split(APART))) for of in records if of.values},
        published={of.metric: of.published for of in records if of.published is not None},
        costs=Costs(**_read(Costs, first)),
    )


def _judged_of(records: Sequence[Result]) -> Judged | None:
    compared = [record for record in records if record.against]
    if not compared:
        return None
    differences = {
        of.row: Difference(**_read(Difference, of), over_seeds=bool(of.over_seeds)) for of in compared
    }
    intervals = {of.row: (of.low, of.high) for of in records if of.low is not None and of.high is not None}
    units = compared[0].queries
    if compared[0].may_be_best is not None:
        return Judged(units=units, labels=tuple(differences), intervals=intervals, best=differences)
    best = compared[0].against
    return Judged(
        units=units,
        labels=(best, *differences),
        intervals=intervals,
        pairs={(row, best): difference for row, difference in differences.items()},
        tests=compared[0].pairs,
    )


def columns(records: Sequence[Result]) -> Mapping[str, list[object]]:
    """Return records by columns."""
    names = [field.name for field in dataclasses.fields(Result)]
    return {name: [getattr(record, name) for record in records] for name in names}
