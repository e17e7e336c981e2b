"""Tables of scores: of a group, ours beside published ones, and task x aggregator."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import replace

from polypool.infra.text_tables import ABSENT, Table
from polypool.pipelines.comparison.groups import SECONDS, Group, Row
from polypool.pipelines.comparison.statistics.intervals import Difference
from polypool.pipelines.comparison.tables.cross_task import Column, CrossTaskTable
from polypool.pipelines.comparison.tables.differences import (
    BY_QUERIES,
    ONE_SEED,
    confidence_set,
    finding,
    group_doubts,
    legend_of_marks,
    mark,
    with_sign,
)


def scores(group: Group, *, tuning: bool = True) -> Table:
    """Return the metrics of a group's rows, and what tuning chose for each."""
    legend = [f"sorted by {group.metric.label}; mean ± sample standard deviation over runs"]
    if not math.isnan(group.metric.chance):
        legend[0] += f"; chance {group.metric.name} {group.number(group.metric.chance)}"
    columns = group.columns
    chosen = tuning and any(row.chosen for row in group.rows)
    return Table(
        title=group.title,
        legend=(*legend, *group.usual, *legend_of_marks(group)),
        header=(
            "aggregator",
            "runs",
            *(column.replace("/", " ") for column in columns),
            *["chosen"] * chosen,
        ),
        rows=tuple(
            (
                row.label,
                str(len(row.seeds)),
                *(_score(group, row, column) for column in columns),
                *[row.chosen or ABSENT] * chosen,
            )
            for row in group.rows
        ),
        notes=(
            *confidence_set(group),
            *group_doubts(group),
            *(f"published, {line}" for line in group.published),
        ),
        best=frozenset((0, 2 + at) for at, name in enumerate(columns) if name == group.metric.name),
    )


def brief_scores(group: Group) -> Table:
    """Return the metrics of a group's rows with what they show, for a screen."""
    table = scores(group, tuning=False)
    found = finding(group, {row.label: row for row in group.rows})
    return replace(
        table,
        legend=(table.legend[0], *_one_seed({mark(_from_best(group, row)) for row in group.rows})),
        notes=(*filter(None, [found]), *group_doubts(group)),
    )


def _from_best(group: Group, row: Row) -> Difference | None:
    return group.judged.from_best(row.label) if group.judged else None


def _one_seed(marks: Collection[str]) -> Iterator[str]:
    """Yield what the sign of rows means that are excluded by queries alone, if there are any."""
    if BY_QUERIES in marks:
        yield f"?: the queries tell it from the best; {ONE_SEED}"


def _score(group: Group, row: Row, column: str) -> str:
    mean, deviation = row.mean(column), row.deviation(column)
    if math.isnan(mean):
        return ABSENT
    if column == SECONDS.name:
        return f"{mean:.0f}"
    text = _with_deviation(mean, deviation, group.decimals(column))
    if group.judged is None or column != group.metric.name:
        return text
    return text + mark(group.judged.from_best(row.label))


def published(group: Group) -> Table | None:
    """Return the rows' scores beside those of the papers; None if no recipe of theirs has any."""
    lines = []
    for row in group.rows:
        for name, number in row.published.items():
            mean, digits = row.mean(name), group.decimals(name)
            ours, difference = ABSENT, ABSENT
            if not math.isnan(mean):
                ours, difference = f"{mean:.{digits}f}", with_sign(mean - number, digits)
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


def across(cross_task: CrossTaskTable) -> Table:
    """Return task x aggregator."""
    legend = ["a column is one protocol, and numbers of different protocols are never in one column"]
    over = "primary metric, mean ± sample standard deviation over runs"
    known = [column.group.judged for column in cross_task.columns]
    judged = [of for of in known if of is not None and of.compared]
    if any(of.best for of in judged):
        over += "; *: in the confidence set of the best of its column (95 %, over seeds and queries)"
    elif judged:
        over += "; *: no significant difference from the best of its column, over seeds and queries (Holm)"
    legend.append(over)
    marks = {mark(column.from_best(row)) for column in cross_task.columns for row in column.rows.values()}
    legend += _one_seed(marks)
    groups = [column.group for column in cross_task.columns]
    legend += dict.fromkeys(f"{group.title}: {line}" for group in groups for line in group.usual)
    summaries = _summaries(cross_task)
    legend += [_SUMMARIES[title] for title in summaries]
    rows = []
    for name in cross_task.aggregators:
        numbers = [_entry(column, name, bool(judged)) for column in cross_task.columns]
        rows.append((name, *numbers, *(of.get(name, ABSENT) for of in summaries.values())))
    best = {
        (cross_task.aggregators.index(column.best.variant), at)
        for at, column in enumerate(cross_task.columns, start=1)
    }
    return Table(
        title=" · ".join(part for part in ("task x aggregator", cross_task.tuned) if part),
        legend=tuple(legend),
        header=(
            "aggregator",
            *("\n".join(column.title) for column in cross_task.columns),
            *summaries,
        ),
        rows=tuple(rows),
        notes=(*cross_task.notes, *_not_judged(cross_task)),
        best=frozenset(best),
        label=32,
    )


def brief_across(cross_task: CrossTaskTable) -> Table:
    """Return task x aggregator with what it shows, for a screen."""
    table, findings, means = across(cross_task), list[str](), cross_task.mean_ranks
    for column in cross_task.columns:
        rows = sorted(column.rows.items(), key=lambda pair: column.group.rows.index(pair[1]))
        of = " ".join(column.title[:2])
        if found := finding(column.group, dict(rows)):
            findings.append(f"{of}: {found}")
        findings += [f"{of}: {doubt}" for doubt in group_doubts(column.group)]
    marks = {mark(column.from_best(row)) for column in cross_task.columns for row in column.rows.values()}
    if means:
        first = min(means, key=means.__getitem__)
        findings.append(
            f"best mean rank over {len(cross_task.counting)} columns: {first}, {means[first]:.1f}"
        )
    return replace(
        table,
        legend=(
            "primary metrics, mean ± deviation over runs; chance-normalised: mean over columns, 0 for chance, 100 for "
            "the best possible",
            *_one_seed(marks),
        ),
        notes=(*findings, *cross_task.notes),
    )


_SUMMARIES = {
    "chance-\nnormalised": (
        "chance-normalised: mean over columns of 100 (score - chance) / (best possible - chance)"
    ),
    "rank": "rank: mean over columns",
    "weights": "weights: of the aggregators, in the column where they are most",
    "step": "step: processor time of a training step, as a multiple of its column's least; geometric mean over columns",
}


def _summaries(cross_task: CrossTaskTable) -> dict[str, dict[str, str]]:
    """Return the columns of means over tasks that are known: by title, their entries by aggregator."""
    means = {name: cross_task.mean(name) for name in cross_task.complete}
    columns = (means, cross_task.mean_ranks, cross_task.weights, cross_task.steps)
    texts = [
        {name: f"{value:{form}}" for name, value in known.items()}
        for known, form in zip(columns, (".1f", ".1f", ",.0f", ".2f"), strict=True)
    ]
    return {title: known for title, known in zip(_SUMMARIES, texts, strict=True) if known}


def _entry(column: Column, aggregator: str, stars: bool) -> str:
    row, group = column.rows.get(aggregator), column.group
    if row is None or math.isnan(group.mean(row)):
        return ABSENT + " " * stars
    text = _with_deviation(group.mean(row), group.deviation(row), group.decimals(group.metric.name))
    return text + (mark(column.from_best(row)) if stars else "")


def _not_judged(cross_task: CrossTaskTable) -> Iterator[str]:
    """Yield the columns without asterisks, as files do not hold the differences from their best."""
    for column in cross_task.columns:
        judged, others = column.group.judged, [row for row in column.rows.values() if row is not column.best]
        if judged and others and not any(map(column.from_best, others)):
            of = " · ".join(column.title[:-1])
            yield f"{of} is not judged: of its table the differences from {judged.labels[0]} alone are known"
