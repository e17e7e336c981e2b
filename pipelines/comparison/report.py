"""What a comparison says, as tables: the scores of a group, its differences and costs, and task x aggregator."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from pipelines.comparison.bootstrap import Difference
from pipelines.comparison.costs import Costs, costs_of
from pipelines.comparison.cross_task import Column, Grid
from pipelines.comparison.groups import SECONDS, Group, Row
from pipelines.comparison.render import ABSENT, Table
from pipelines.comparison.significance import same_as_best


def scores(group: Group) -> Table:
    """Return the metrics of a group's rows."""
    legend = f"sorted by {group.metric}; mean ± sample standard deviation over runs"
    if not math.isnan(group.chance):
        legend += f"; chance {group.metric} {group.chance:.1f}"
    return Table(
        title=group.title,
        legend=(legend, *_starred(group)),
        header=("aggregator", "runs", *(column.replace("/", " ") for column in group.columns)),
        rows=tuple(
            (row.label, str(len(row.seeds)), *(_score(group, row, column) for column in group.columns))
            for row in group.rows
        ),
        notes=tuple(f"published, {said}" for said in group.published),
        best=frozenset({(0, 2 + group.columns.index(group.metric))} if group.metric in group.columns else ()),
    )


def _starred(group: Group) -> Iterator[str]:
    if (found := group.bootstrap) is not None:
        yield (
            f"*: no significant difference from {found.labels[0]}, as the 95 % interval of a paired bootstrap over "
            f"{found.units} holds 0 (seeds averaged first)"
        )


def _score(group: Group, row: Row, column: str) -> str:
    mean, deviation = row.mean(column), row.deviation(column)
    if math.isnan(mean):
        return ABSENT
    if column == SECONDS:
        return f"{mean:.0f}"
    text = _with_deviation(mean, deviation)
    if column != group.metric or group.bootstrap is None:
        return text
    return text + ("*" if _no_significant_difference(group, row) else " ")


def _no_significant_difference(group: Group, row: Row) -> bool:
    first = next(other for other in group.rows if other.label == group.bootstrap.labels[0])
    return bool(same_as_best(group, row, first))


def _with_deviation(mean: float, deviation: float) -> str:
    return f"{mean:.1f} ± {f' {ABSENT}' if math.isnan(deviation) else f'{deviation:.1f}'}"


def differences(group: Group, *, costs: bool = True) -> Table | None:
    """Return how far a group's rows are from the best, and what they cost; None where neither is known."""
    cost = {row.label: costs_of(row) for row in group.rows} if costs else {}
    known = {name for of in cost.values() for name, _ in _COSTS if not math.isnan(getattr(of, name))}
    if group.bootstrap is None and not known:
        return None
    shown = [(name, title) for name, title in _COSTS if name in known]
    header = ["aggregator"]
    legend = []
    if group.bootstrap is not None:
        header += [group.metric, "difference", "95 % interval", "significant"]
        legend.append(
            f"difference of {group.metric} from {group.bootstrap.labels[0]}, over {group.bootstrap.units}, "
            "seeds averaged first"
        )
    rows = []
    for row in group.rows:
        cells = [row.label, *(_difference_cells(group, row) if group.bootstrap is not None else ())]
        rows.append((*cells, *(_cost(cost[row.label], name) for name, _ in shown)))
    if shown:
        legend.append("; ".join(_MEANING[name] for name, _ in shown))
    return Table(
        title=f"{group.title}: differences and costs" if shown else f"{group.title}: differences",
        legend=tuple(legend),
        header=(*header, *(title for _, title in shown)),
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


def _difference_cells(group: Group, row: Row) -> tuple[str, ...]:
    mean, reference = row.mean(group.metric), group.bootstrap.labels[0]
    first = ABSENT if math.isnan(mean) else f"{mean:.1f}"
    found = group.bootstrap.difference(row.label, reference)
    return (first, *(_difference(found) if found else (ABSENT, ABSENT, ABSENT)))


def _difference(found: Difference) -> tuple[str, str, str]:
    value, low, high = (_signed(x) for x in (found.value, found.low, found.high))
    return value, f"[{low}, {high}]", "yes" if found.significant else "no"


def _signed(value: float) -> str:
    """Show a sign, but for what rounds to nothing."""
    return f"{value:+.1f}" if abs(value) >= 0.05 else "0.0"


def all_pairs(group: Group) -> Table | None:
    """Return the difference of every two rows of a group; None where no queries were compared."""
    found = group.bootstrap
    if found is None:
        return None
    pairs = itertools.combinations(found.labels, 2)
    return Table(
        title=f"{group.title}: all pairs",
        legend=(f"{group.metric} of the first without that of the second, over {found.units}",),
        header=("pair", "difference", "95 % interval", "significant"),
        rows=tuple((f"{a} against {b}", *_difference(found.difference(a, b))) for a, b in pairs),
    )


def across(grid: Grid) -> Table:
    """Return task x aggregator."""
    legend = ["a column is one protocol, and numbers of different protocols are never in one column"]
    stars = any(column.group.bootstrap for column in grid.columns)
    legend.append(
        "main metric, mean ± sample standard deviation over runs"
        + ("; *: no significant difference from the best of its column (paired bootstrap)" if stars else "")
    )
    summary = bool(grid.complete)
    if summary:
        legend.append(
            "chance_normalised: mean over columns of 100 (score - chance) / (best possible - chance); rank: mean over columns"
        )
    rows = []
    for name in grid.aggregators:
        numbers = [_grid_score(column, name, stars) for column in grid.columns]
        mean, rank = grid.mean(name), grid.mean_ranks.get(name, math.nan)
        numbers += [ABSENT if math.isnan(x) else f"{x:.1f}" for x in (mean, rank)] if summary else []
        rows.append((name, *numbers))
    best = {
        (grid.aggregators.index(column.best.aggregator), at)
        for at, column in enumerate(grid.columns, start=1)
    }
    return Table(
        title="task x aggregator",
        legend=tuple(legend),
        header=(
            "aggregator",
            *("\n".join(column.title) for column in grid.columns),
            *(("chance_normalised", "rank") if summary else ()),
        ),
        rows=tuple(rows),
        notes=grid.notes,
        best=frozenset(best),
        label=32,
    )


def _grid_score(column: Column, aggregator: str, stars: bool) -> str:
    row = column.rows.get(aggregator)
    if row is None or math.isnan(row.mean(column.group.metric)):
        return ABSENT + " " * stars
    text = _with_deviation(row.mean(column.group.metric), row.deviation(column.group.metric))
    return text + ("*" if same_as_best(column.group, row, column.best) else " " if stars else "")
