"""What a comparison says, as tables: the scores of a group, its differences and costs, and task x aggregator."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Callable, Iterator

from infra.compute.cost import UNIT
from pipelines.comparison.runs.costs import Costs, costs_of
from pipelines.comparison.runs.groups import SECONDS, Group, Row, spoken
from pipelines.comparison.statistics.intervals import LEVEL
from pipelines.comparison.statistics.significance import Difference, Judged
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
        legend=(*legend, *group.usual, *_starred(group)),
        header=("aggregator", "runs", *(column.replace("/", " ") for column in columns)),
        rows=tuple(
            (row.label, str(len(row.seeds)), *(_score(group, row, column) for column in columns))
            for row in group.rows
        ),
        notes=tuple(f"published, {line}" for line in group.published),
        best=frozenset((0, 2 + at) for at in sorting),
    )


def _starred(group: Group) -> Iterator[str]:
    if group.judged is None:
        return
    best, judged = group.judged.labels[0], group.judged
    yield f"*: no significant difference from {best} over {judged.units} and seeds, {_corrected(judged)}"
    if any(verdict(group, row.label, best) is Verdict.QUERIES for row in group.rows):
        yield f"?: the queries tell it from {best}; of one seed nobody can say what another would change"


def _corrected(judged: Judged) -> str:
    return f"corrected by Holm for {_counted(judged.tests, 'pair')}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count > 1)}"


def _score(group: Group, row: Row, column: str) -> str:
    mean, deviation = row.mean(column), row.deviation(column)
    if math.isnan(mean):
        return ABSENT
    if column == SECONDS.name:
        return f"{mean:.0f}"
    text = _with_deviation(mean, deviation, group.decimals(column))
    if group.judged is None or group.metric is None or column != group.metric.name:
        return text
    return text + MARKS[verdict(group, row.label, group.judged.labels[0])]


class Verdict(enum.Enum):
    """What is known of a difference."""

    UNKNOWN = ABSENT
    NO = "no"
    YES = "yes"
    QUERIES = "by queries"


MARKS = {Verdict.UNKNOWN: " ", Verdict.NO: "*", Verdict.YES: " ", Verdict.QUERIES: "?"}
"""What stands behind a score, by what is known of its difference from the best."""


def verdict(group: Group, label: str, other: str) -> Verdict:
    """Return what is known of the difference of two rows."""
    difference = group.judged.difference(label, other) if group.judged else None
    return Verdict.UNKNOWN if difference is None else _verdict(difference)


def _verdict(difference: Difference) -> Verdict:
    return {None: Verdict.QUERIES, True: Verdict.YES, False: Verdict.NO}[difference.significant]


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
    if group.judged is None and not known:
        return None
    columns = [(name, title) for name, title in _COSTS if name in known]
    header = ["aggregator"]
    legend = []
    if group.judged is not None:
        header += [group.metric.name, "95 % interval", "difference", *_JUDGED]
        legend.append(
            f"difference of {spoken(group.metric)} from {group.judged.labels[0]}; {_method(group.judged)}"
        )
    rows = []
    for row in group.rows:
        compared = _compared(group, row) if group.judged is not None else ()
        rows.append((row.label, *compared, *(_cost(cost[row.label], name) for name, _ in columns)))
    if columns:
        legend.append("; ".join(_MEANING[name] for name, _ in columns))
    return Table(
        title=f"{group.title}: differences and costs" if columns else f"{group.title}: differences",
        legend=tuple(legend),
        header=(*header, *(title for _, title in columns)),
        rows=tuple(rows),
    )


_JUDGED = ("95 % interval", "p", "significant")
_COSTS = (("weights", "weights"), ("step", "step"), ("embed", "embed"))
_MEANING = {
    "weights": "weights: those of the aggregators",
    "step": f"step: processor time of a training step, in {UNIT} timed beside it",
    "embed": "embed: likewise, of embedding an item of the test split and its texts, or of answering a question",
}


def _method(judged: Judged) -> str:
    """Say what intervals and p-values are over."""
    seeds = [difference.over_seeds for difference in judged.pairs.values()]
    over = "seeds and queries" if all(seeds) else "seeds (where both rows have two) and queries"
    if not any(seeds):
        over = "queries alone, as of one seed nobody can say what another would change"
    return f"intervals over {over} ({judged.units}), each alone; p {_corrected(judged)}, significant below {LEVEL}"


def _cost(costs: Costs, name: str) -> str:
    value = getattr(costs, name)
    if math.isnan(value):
        return ABSENT
    return f"{value:,.0f}" if name == "weights" or value >= 100 else f"{value:.3g}"


def _compared(group: Group, row: Row) -> tuple[str, ...]:
    mean, reference = group.mean(row), group.judged.labels[0]
    first = ABSENT if math.isnan(mean) else group.number(mean)
    interval = _interval(group.judged.intervals.get(row.label), group.number)
    difference = group.judged.difference(row.label, reference)
    return (first, interval, *(_difference(difference, group) if difference else [ABSENT] * 4))


def _interval(ends: tuple[float, float] | None, number: Callable[[float], str]) -> str:
    return f"[{number(ends[0])}, {number(ends[1])}]" if ends else ABSENT


def _difference(difference: Difference, group: Group) -> tuple[str, ...]:
    digits = group.decimals(group.metric.name)
    interval = _interval((difference.low, difference.high), lambda x: _signed(x, digits))
    p = f"{difference.p:.3f}" if difference.p >= 0.001 else "< 0.001"
    return _signed(difference.value, digits), interval, p, _verdict(difference).value


def _signed(value: float, digits: int) -> str:
    """Show a sign, but for what rounds to nothing."""
    return f"{value:+.{digits}f}" if round(abs(value), digits) else f"{0:.{digits}f}"


def all_pairs(group: Group) -> Table | None:
    """Return the difference of every two rows of a group; None where no queries were compared."""
    judged = group.judged
    if judged is None:
        return None
    pairs = itertools.combinations(judged.labels, 2)
    return Table(
        title=f"{group.title}: all pairs",
        legend=(f"{spoken(group.metric)}, of the first without that of the second; {_method(judged)}",),
        header=("pair", "difference", *_JUDGED),
        rows=tuple((f"{a} against {b}", *_difference(judged.difference(a, b), group)) for a, b in pairs),
    )


def across(cross_task: CrossTaskTable) -> Table:
    """Return task x aggregator."""
    legend = ["a column is one protocol, and numbers of different protocols are never in one column"]
    stars = any(column.group.judged for column in cross_task.columns)
    legend.append(
        "primary metric, mean ± sample standard deviation over runs"
        + (
            "; *: no significant difference from the best of its column (Holm, over its pairs)"
            if stars
            else ""
        )
    )
    if any(
        verdict(column.group, row.label, column.best.label) is Verdict.QUERIES
        for column in cross_task.columns
        for row in column.rows.values()
    ):
        legend.append(
            "?: the queries tell it from the best; of one seed nobody can say what another would change"
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
        (cross_task.aggregators.index(column.best.variant), at)
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
    return text + (MARKS[verdict(group, row.label, column.best.label)] if stars else "")
