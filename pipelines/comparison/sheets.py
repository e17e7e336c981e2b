"""What a comparison says, as tables: the scores of a block, its differences and costs, and task x aggregator."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from pipelines.comparison.blocks import SECONDS, Block, Row
from pipelines.comparison.bootstrap import Difference
from pipelines.comparison.costs import Costs, costs_of
from pipelines.comparison.differences import same_as_best
from pipelines.comparison.grid import Column, Grid
from pipelines.comparison.sheet import ABSENT, Sheet


def scores(block: Block) -> Sheet:
    """Return the metrics of a block's rows."""
    legend = f"sorted by {block.metric}; mean ± sample standard deviation over runs"
    if not math.isnan(block.chance):
        legend += f"; chance {block.metric} {block.chance:.1f}"
    return Sheet(
        title=block.title,
        legend=(legend, *_starred(block)),
        header=("aggregator", "runs", *(column.replace("/", " ") for column in block.columns)),
        rows=tuple(
            (row.label, str(len(row.seeds)), *(_score(block, row, column) for column in block.columns))
            for row in block.rows
        ),
        notes=tuple(f"published, {said}" for said in block.published),
        best=frozenset({(0, 2 + block.columns.index(block.metric))} if block.metric in block.columns else ()),
    )


def _starred(block: Block) -> Iterator[str]:
    if (found := block.bootstrap) is not None:
        yield (
            f"*: no real difference from {found.labels[0]}, as the 95 % interval of a paired bootstrap over "
            f"{found.units} holds 0 (seeds averaged first)"
        )


def _score(block: Block, row: Row, column: str) -> str:
    mean, deviation = row.mean(column), row.deviation(column)
    if math.isnan(mean):
        return ABSENT
    if column == SECONDS:
        return f"{mean:.0f}"
    text = _with_deviation(mean, deviation)
    if column != block.metric or block.bootstrap is None:
        return text
    return text + ("*" if _no_real_difference(block, row) else " ")


def _no_real_difference(block: Block, row: Row) -> bool:
    first = next(other for other in block.rows if other.label == block.bootstrap.labels[0])
    return bool(same_as_best(block, row, first))


def _with_deviation(mean: float, deviation: float) -> str:
    return f"{mean:.1f} ± {f' {ABSENT}' if math.isnan(deviation) else f'{deviation:.1f}'}"


def differences(block: Block, *, costs: bool = True) -> Sheet | None:
    """Return how far a block's rows are from the best, and what they cost; None where neither is known."""
    cost = {row.label: costs_of(row) for row in block.rows} if costs else {}
    known = {name for of in cost.values() for name, _ in _COSTS if not math.isnan(getattr(of, name))}
    if block.bootstrap is None and not known:
        return None
    shown = [(name, title) for name, title in _COSTS if name in known]
    header = ["aggregator"]
    legend = []
    if block.bootstrap is not None:
        header += [block.metric, "difference", "95 % interval", "real"]
        legend.append(
            f"difference of {block.metric} from {block.bootstrap.labels[0]}, over {block.bootstrap.units}, "
            "seeds averaged first"
        )
    rows = []
    for row in block.rows:
        cells = [row.label, *(_difference_cells(block, row) if block.bootstrap is not None else ())]
        rows.append((*cells, *(_cost(cost[row.label], name) for name, _ in shown)))
    if shown:
        legend.append("; ".join(_MEANING[name] for name, _ in shown))
    return Sheet(
        title=f"{block.title}: differences and costs" if shown else f"{block.title}: differences",
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


def _difference_cells(block: Block, row: Row) -> tuple[str, ...]:
    mean, reference = row.mean(block.metric), block.bootstrap.labels[0]
    first = ABSENT if math.isnan(mean) else f"{mean:.1f}"
    found = block.bootstrap.difference(row.label, reference)
    return (first, *(_difference(found) if found else (ABSENT, ABSENT, ABSENT)))


def _difference(found: Difference) -> tuple[str, str, str]:
    value, low, high = (_signed(x) for x in (found.value, found.low, found.high))
    return value, f"[{low}, {high}]", "yes" if found.real else "no"


def _signed(value: float) -> str:
    """Show a sign, but for what rounds to nothing."""
    return f"{value:+.1f}" if abs(value) >= 0.05 else "0.0"


def all_pairs(block: Block) -> Sheet | None:
    """Return the difference of every two rows of a block; None where no queries were compared."""
    found = block.bootstrap
    if found is None:
        return None
    pairs = itertools.combinations(found.labels, 2)
    return Sheet(
        title=f"{block.title}: all pairs",
        legend=(f"{block.metric} of the first without that of the second, over {found.units}",),
        header=("pair", "difference", "95 % interval", "real"),
        rows=tuple((f"{a} against {b}", *_difference(found.difference(a, b))) for a, b in pairs),
    )


def across(grid: Grid) -> Sheet:
    """Return task x aggregator."""
    legend = ["a column is one protocol, and numbers of different protocols are never in one column"]
    stars = any(column.block.bootstrap for column in grid.columns)
    legend.append(
        "main metric, mean ± sample standard deviation over runs"
        + ("; *: no real difference from the best of its column (paired bootstrap)" if stars else "")
    )
    summary = bool(grid.complete)
    if summary:
        legend.append(
            "centred: mean over columns of 100 (score - chance) / (best possible - chance); rank: mean over columns"
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
    return Sheet(
        title="task x aggregator",
        legend=tuple(legend),
        header=(
            "aggregator",
            *("\n".join(column.title) for column in grid.columns),
            *(("centred", "rank") if summary else ()),
        ),
        rows=tuple(rows),
        notes=grid.notes,
        best=frozenset(best),
        label=32,
    )


def _grid_score(column: Column, aggregator: str, stars: bool) -> str:
    row = column.rows.get(aggregator)
    if row is None or math.isnan(row.mean(column.block.metric)):
        return ABSENT + " " * stars
    text = _with_deviation(row.mean(column.block.metric), row.deviation(column.block.metric))
    return text + ("*" if same_as_best(column.block, row, column.best) else " " if stars else "")
