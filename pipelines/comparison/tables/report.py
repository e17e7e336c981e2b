"""What a comparison says, as tables: the scores of a group, its differences and costs, and task x aggregator."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from pipelines.comparison.runs.costs import Costs, costs_of
from pipelines.comparison.runs.groups import SECONDS, Group, Row, spoken
from pipelines.comparison.statistics.significance import Difference
from pipelines.comparison.tables.cross_task import Column, CrossTaskTable
from pipelines.comparison.tables.render import ABSENT, Table


def scores(group: Group) -> Table:
    """Return the metrics of a group's rows."""
    over = "mean ± sample standard deviation over runs"
    legend = [f"in the order of names; {over}"]
    if group.metric is not None:
        legend = [f"sorted by {spoken(group.metric)}; {over}"]
        if not math.isnan(group.metric.chance):
            legend[0] += f"; chance {group.metric.name} {group.number(group.metric.chance)}"
    columns = group.columns
    sorting = [at for at, name in enumerate(columns) if group.metric and name == group.metric.name]
    return Table(
        title=group.title,
        legend=(*legend, *_starred(group)),
        header=("aggregator", "runs", *(column.replace("/", " ") for column in columns)),
        rows=tuple(
            (row.label, str(len(row.seeds)), *(_score(group, row, column) for column in columns))
            for row in group.rows
        ),
        notes=tuple(f"published, {line}" for line in group.published),
        best=frozenset((0, 2 + at) for at in sorting),
    )


def _starred(group: Group) -> Iterator[str]:
    if group.bootstrap is not None:
        yield (
            f"*: no significant difference from {group.bootstrap.labels[0]}, as the 95 % interval of a paired "
            f"bootstrap over {group.bootstrap.units} holds 0 (seeds averaged first)"
        )


def _score(group: Group, row: Row, column: str) -> str:
    mean, deviation = row.mean(column), row.deviation(column)
    if math.isnan(mean):
        return ABSENT
    if column == SECONDS.name:
        return f"{mean:.0f}"
    text = _with_deviation(mean, deviation, group.decimals(column))
    if group.bootstrap is None or group.metric is None or column != group.metric.name:
        return text
    first = next(other for other in group.rows if other.label == group.bootstrap.labels[0])
    return text + ("*" if same_as_best(group, row, first) else " ")


def same_as_best(group: Group, row: Row, best: Row) -> bool | None:
    """Whether a row's difference from the best is not significant; None for the best itself, and where not known."""
    if group.bootstrap is None or row.label == best.label:
        return None
    difference = group.bootstrap.difference(best.label, row.label)
    return None if difference is None else not difference.significant


def published(group: Group) -> Table | None:
    """Return what the rows reach beside what the papers report; None where no recipe of theirs has such numbers."""
    lines = []
    for row in group.rows:
        for name, number in row.published.items():
            mean, digits = row.mean(name), group.decimals(name)
            ours, difference = ABSENT, ABSENT
            if not math.isnan(mean):
                ours, difference = f"{mean:.{digits}f}", _signed(mean - number, digits)
            lines.append((row.label, name.replace("/", " "), ours, f"{number:.{digits}f}", difference))
    if not lines:
        return None
    return Table(
        title=f"{group.title}: ours and published",
        legend=("rows with the aggregators and the model of their recipe; ours: mean over runs",),
        header=("aggregator", "metric", "ours", "published", "difference"),
        rows=tuple(lines),
        notes=group.published,
    )


def _with_deviation(mean: float, deviation: float, digits: int) -> str:
    return f"{mean:.{digits}f} ± " + (f" {ABSENT}" if math.isnan(deviation) else f"{deviation:.{digits}f}")


def differences(group: Group, *, costs: bool = True) -> Table | None:
    """Return how far a group's rows are from the best, and what they cost; None where neither is known."""
    cost = {row.label: costs_of(row) for row in group.rows} if costs else {}
    known = {name for of in cost.values() for name, _ in _COSTS if not math.isnan(getattr(of, name))}
    if group.bootstrap is None and not known:
        return None
    columns = [(name, title) for name, title in _COSTS if name in known]
    header = ["aggregator"]
    legend = []
    if group.bootstrap is not None:
        header += [group.metric.name, "difference", "95 % interval", "significant"]
        legend.append(
            f"difference of {spoken(group.metric)} from {group.bootstrap.labels[0]}, over {group.bootstrap.units}, "
            "seeds averaged first"
        )
    rows = []
    for row in group.rows:
        compared = _compared(group, row) if group.bootstrap is not None else ()
        rows.append((row.label, *compared, *(_cost(cost[row.label], name) for name, _ in columns)))
    if columns:
        legend.append("; ".join(_MEANING[name] for name, _ in columns))
    return Table(
        title=f"{group.title}: differences and costs" if columns else f"{group.title}: differences",
        legend=tuple(legend),
        header=(*header, *(title for _, title in columns)),
        rows=tuple(rows),
    )


_COSTS = (("weights", "weights"), ("step_ms", "step ms"), ("embed_ms", "embed ms"))
_MEANING = {
    "weights": "weights: those of the aggregators",
    "step_ms": "step ms: milliseconds of a training step",
    "embed_ms": "embed ms: milliseconds to embed an item of the test split and its texts",
}


def _cost(costs: Costs, name: str) -> str:
    value = getattr(costs, name)
    if math.isnan(value):
        return ABSENT
    return f"{value:,.0f}" if name == "weights" or value >= 100 else f"{value:.1f}"


def _compared(group: Group, row: Row) -> tuple[str, ...]:
    mean, reference = group.mean(row), group.bootstrap.labels[0]
    first = ABSENT if math.isnan(mean) else group.number(mean)
    difference = group.bootstrap.difference(row.label, reference)
    return (first, *(_difference(difference, group) if difference else (ABSENT, ABSENT, ABSENT)))


def _difference(difference: Difference, group: Group) -> tuple[str, str, str]:
    digits = group.decimals(group.metric.name)
    value, low, high = (_signed(x, digits) for x in (difference.value, difference.low, difference.high))
    return value, f"[{low}, {high}]", "yes" if difference.significant else "no"


def _signed(value: float, digits: int) -> str:
    """Show a sign, but for what rounds to nothing."""
    return f"{value:+.{digits}f}" if round(abs(value), digits) else f"{0:.{digits}f}"


def all_pairs(group: Group) -> Table | None:
    """Return the difference of every two rows of a group; None where no queries were compared."""
    bootstrap = group.bootstrap
    if bootstrap is None:
        return None
    pairs = itertools.combinations(bootstrap.labels, 2)
    return Table(
        title=f"{group.title}: all pairs",
        legend=(f"{spoken(group.metric)}, of the first without that of the second, over {bootstrap.units}",),
        header=("pair", "difference", "95 % interval", "significant"),
        rows=tuple((f"{a} against {b}", *_difference(bootstrap.difference(a, b), group)) for a, b in pairs),
    )


def across(cross_task: CrossTaskTable) -> Table:
    """Return task x aggregator."""
    legend = ["a column is one protocol, and numbers of different protocols are never in one column"]
    stars = any(column.group.bootstrap for column in cross_task.columns)
    legend.append(
        "primary metric, mean ± sample standard deviation over runs"
        + ("; *: no significant difference from the best of its column (paired bootstrap)" if stars else "")
    )
    summary = bool(cross_task.complete)
    if summary:
        legend.append(
            "chance-normalised: mean over columns of 100 (score - chance) / (best possible - chance); rank: mean over "
            "columns"
        )
    rows = []
    for name in cross_task.aggregators:
        numbers = [_entry(column, name, stars) for column in cross_task.columns]
        mean, rank = cross_task.mean(name), cross_task.mean_ranks.get(name, math.nan)
        numbers += [ABSENT if math.isnan(x) else f"{x:.1f}" for x in (mean, rank)] if summary else []
        rows.append((name, *numbers))
    best = {
        (cross_task.aggregators.index(column.best.aggregator), at)
        for at, column in enumerate(cross_task.columns, start=1)
    }
    return Table(
        title="task x aggregator",
        legend=tuple(legend),
        header=(
            "aggregator",
            *("\n".join(column.title) for column in cross_task.columns),
            *(("chance-\nnormalised", "rank") if summary else ()),
        ),
        rows=tuple(rows),
        notes=cross_task.notes,
        best=frozenset(best),
        label=32,
    )


def _entry(column: Column, aggregator: str, stars: bool) -> str:
    row, group = column.rows.get(aggregator), column.group
    if row is None or math.isnan(group.mean(row)):
        return ABSENT + " " * stars
    text = _with_deviation(group.mean(row), group.deviation(row), group.decimals(group.metric.name))
    return text + ("*" if same_as_best(group, row, column.best) else " " if stars else "")
