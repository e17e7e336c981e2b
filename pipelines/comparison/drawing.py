"""The figures of a comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from polypool.infra.spec import Spec, without
from polypool.infra.text_tables import ABSENT
from polypool.pipelines.comparison.groups import Group, Row
from polypool.pipelines.comparison.tables.cross_task import Column, CrossTaskTable, why_not
from polypool.pipelines.figures.costs import draw_costs
from polypool.pipelines.figures.critical import draw_critical
from polypool.pipelines.figures.heat import draw_heat
from polypool.pipelines.figures.parameters import draw_parameters
from polypool.pipelines.figures.scores import ScoredGroup, ScoredRow, draw_bars
from polypool.pipelines.figures.style import INK, lines_of, new_figure, save, wrapped

_HEADER = 16  # characters of a line above a column of the heat map


def draw_all(groups: Sequence[Group], cross_task: CrossTaskTable | None, folder: Path) -> list[Path]:
    """Draw every figure that there is data for, and return their files."""
    paths = []
    scored = [scored_group(group) for group in groups if group.metric is not None]
    if scored:
        paths.append(folder / "compare.png")
        draw_bars(scored, paths[-1])
    paths += [
        path
        for path, draw in (
            (folder / "costs.png", draw_costs),
            (folder / "parameters.png", draw_parameters),
        )
        if draw(scored, path)
    ]
    if cross_task is not None:
        paths.append(folder / "heat_map.png")
        draw_cross_task(cross_task, paths[-1])
    if cross_task is not None and not why_not(cross_task):
        paths.append(folder / "critical_difference.png")
        draw_critical(cross_task.mean_ranks, paths[-1], tasks=len(cross_task.counting))
    return paths


def scored_group(group: Group) -> ScoredGroup:
    """Return a group whose metric is known as figures draw it."""
    metric = group.ranked_by
    rows = [
        ScoredRow(
            label=row.label,
            values=row.values.get(metric.name, ()),
            mean=group.mean(row),
            deviation=group.deviation(row),
            interval=_interval(group, row),
            costs=asdict(row.costs),
            parameters=tuple(_parameters(row)),
        )
        for row in group.rows
    ]
    return ScoredGroup(
        title=group.title,
        metric=metric.label,
        chance=metric.chance,
        digits=group.decimals(metric.name),
        rows=tuple(rows),
    )


def _interval(group: Group, row: Row) -> tuple[float, float]:
    """Return the 95 % interval of a row's mean, else the mean with its deviation on both sides."""
    ends = group.judged.intervals.get(row.label) if group.judged else None
    if ends is not None and not math.isnan(ends[0]):
        return ends
    mean, deviation = group.mean(row), float(np.nan_to_num(group.deviation(row)))
    return mean - deviation, mean + deviation


def _parameters(row: Row) -> Iterator[tuple[str, str, float]]:
    """Yield, for every number in a row's first aggregator, the row's name without it, its name and its value."""
    if not row.specs:
        return
    own, *others = row.specs
    for parameter, value in Spec.parse(own).params.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            rest = (without(own, parameter), *(f"text {other}" for other in others))
            shared = (*rest, row.recipe, row.model, row.settings)
            yield ", ".join(part for part in shared if part), parameter, float(value)


def draw_cross_task(cross_task: CrossTaskTable, path: Path) -> None:
    """Write task x aggregator as a heat map, a PNG; shades run from the worst to the best score of each column."""
    names, columns = cross_task.aggregators, cross_task.columns
    above = ["\n".join(wrapped(line, _HEADER) for line in column.title) for column in columns]
    values = [np.array([column.value(name) for name in names]) for column in columns]
    shades = [column.group.ranked_by.relative(value) for column, value in zip(columns, values, strict=True)]
    row = 0.3 * max(1.0, 0.62 * max(map(lines_of, names)))
    header = 0.17 * max(text.count("\n") + 1 for text in above)
    figure = new_figure(max(6.2, 3.4 + 1.35 * len(columns)), row * len(names) + header + 0.9)
    panel = figure.subplots()
    draw_heat(
        panel,
        np.stack(shades, axis=1),
        [[_note(column, name) for column in columns] for name in names],
        rows=[wrapped(name) for name in names],
        columns=above,
        note_size=8.5,
        column_size=8.5,
    )
    panel.xaxis.tick_top()
    heading = "primary metric (chance-normalised: 0 is chance, 100 the best possible)"
    figure.suptitle(heading, x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK)
    save(figure, path)


def _note(column: Column, aggregator: str) -> str:
    value, score = column.value(aggregator), column.chance_normalised(aggregator)
    if math.isnan(value):
        return ABSENT
    return column.group.number(value) + ("" if math.isnan(score) else f"  ({score:.1f})")
