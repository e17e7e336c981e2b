"""All figures of a comparison, and the first of them: a bar for each row with a point for each run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from polypool.pipelines.comparison.charts.parameter_charts import draw_parameters
from polypool.pipelines.comparison.charts.score_charts import draw_charts, group_chart
from polypool.pipelines.comparison.charts.task_charts import draw_critical, draw_cross_task
from polypool.pipelines.comparison.groups import Group, Row
from polypool.pipelines.comparison.tables.cross_task import CrossTaskTable, why_not
from polypool.pipelines.figures.style import BAR, INK, MUTED, POINT, frame, lines_of, save, stacked, wrapped


def draw_all(groups: Sequence[Group], cross_tasks: Sequence[CrossTaskTable], folder: Path) -> list[Path]:
    """Draw every figure that there is data for, and return their files."""
    figures = {
        "compare": draw_bars(groups),
        "costs": draw_charts(map(group_chart, groups)),
        "parameters": draw_parameters(groups),
    }
    for number, cross_task in enumerate(cross_tasks, start=1):
        after = f"_{number}" * (number > 1)
        figures[f"heat_map{after}"] = draw_cross_task(cross_task)
        if not why_not(cross_task):
            tasks = len(cross_task.counting)
            figures[f"critical_difference{after}"] = draw_critical(cross_task.mean_ranks, tasks=tasks)
    paths = []
    for name, figure in figures.items():
        if figure is not None:
            paths.append(folder / f"{name}.png")
            save(figure, paths[-1])
    return paths


def draw_bars(groups: Sequence[Group]) -> Figure | None:
    """Draw a panel for each group: a bar for each row, the best on top, and a point for each run; None of no group.

    Bars are means over runs, lines their sample standard deviations.
    """
    if not groups:
        return None
    figure, panels = stacked(8.5, [0.42 * (sum(map(_height, group.rows)) + 0.3) for group in groups])
    for group, panel in zip(groups, panels, strict=True):
        _draw_panel(group, panel)
    return figure


def _height(row: Row) -> float:
    """The room a bar takes, of which labels of several lines need more."""
    return max(1.0, 0.42 * lines_of(row.label))


def _draw_panel(group: Group, panel: Axes) -> None:
    metric, places, bottom = group.metric, [], 0.0
    for row in group.rows:
        places.append(bottom + _height(row) / 2)
        bottom += _height(row)
    panel.barh(places, [group.mean(row) for row in group.rows], height=0.62, color=BAR, zorder=2)
    values = [row.values.get(metric.name, ()) for row in group.rows]
    for place, row, of_row in zip(places, group.rows, values, strict=True):
        if of_row:
            _draw_runs(panel, group, row, of_row, place)
    if not math.isnan(metric.chance):
        panel.axvline(metric.chance, color=MUTED, linestyle=(0, (2, 2)), linewidth=1, zorder=5)
        above = panel.get_xaxis_transform()
        panel.text(metric.chance, 1.01, " chance", transform=above, color=MUTED, fontsize=8)
    panel.set_yticks(places, [wrapped(row.label) for row in group.rows])
    panel.set_ylim(bottom + 0.15, -0.15)
    panel.margins(x=0.16)
    if all(value >= 0 for of_row in values for value in of_row):
        panel.set_xlim(left=0)
    frame(panel, group.title, x=metric.label, grid="x", spines=("left",))


def _draw_runs(panel: Axes, group: Group, row: Row, values: Sequence[float], place: float) -> None:
    """Draw the points of a row's runs, their deviation and the mean in figures."""
    mean, deviation = group.mean(row), group.deviation(row)
    note, end = group.number(mean), max(values)
    if not math.isnan(deviation):
        note, end = f"{note} ± {group.number(deviation)}", max(end, mean + deviation)
        line: dict[str, Any] = {"fmt": "none", "ecolor": INK, "capsize": 4, "elinewidth": 1.3}
        panel.errorbar(mean, place, xerr=deviation, zorder=3, **line)
    shift = 0.16 if len(values) > 1 else 0.0  # so that near points, and the line, stay visible
    y = [place + shift * (-1) ** at for at in range(len(values))]
    panel.scatter(values, y, s=18, color=POINT, edgecolor="white", linewidth=0.6, zorder=4)
    clear = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}  # over the line of chance
    beside: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 9, "bbox": clear}
    panel.annotate(note, (end, place), (8, 0), color=INK, zorder=6, **beside)
