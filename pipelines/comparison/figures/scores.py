"""Two figures of a comparison: bars of every group, and a heat map of task x aggregator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from pipelines.comparison.runs.groups import Group, Row, spoken
from pipelines.comparison.tables.cross_task import Column, CrossTaskTable
from pipelines.figures.style import (
    BAR,
    INK,
    LINE,
    MUTED,
    POINT,
    bare,
    lines_of,
    new_figure,
    save,
    title,
    wrapped,
)

_HEADER = 16  # characters a line above a column of the heat map


def draw_bars(groups: Sequence[Group], path: Path) -> None:
    """Write a panel for each group as a PNG: a bar an aggregator, the best on top, and a point a run.

    Bars are means over runs, lines their sample standard deviations. Groups whose metric is not known have no panel.
    """
    groups = [group for group in groups if group.metric is not None]
    spans = [sum(map(_height, group.rows)) + 0.3 for group in groups]
    figure = new_figure(8.5, 0.42 * sum(spans) + 1.1 * len(groups))
    axes = figure.subplots(len(groups), 1, squeeze=False, height_ratios=spans)[:, 0]
    for group, panel in zip(groups, axes, strict=True):
        _panel(group, panel)
    save(figure, path)


def _height(row: Row) -> float:
    """The room a bar takes, of which labels of several lines need more."""
    return max(1.0, 0.42 * lines_of(row.label))


def _panel(group: Group, panel: Axes) -> None:
    metric, places, bottom = group.metric, [], 0.0
    for row in group.rows:
        places.append(bottom + _height(row) / 2)
        bottom += _height(row)
    panel.barh(places, [group.mean(row) for row in group.rows], height=0.62, color=BAR, zorder=2)
    x, y, deviated = [], [], []
    for place, row in zip(places, group.rows, strict=True):
        values, mean, deviation = row.values.get(metric.name, ()), group.mean(row), group.deviation(row)
        if not values:
            continue
        note, end = group.number(mean), max(values)
        if not math.isnan(deviation):
            deviated.append((mean, place, deviation))
            note, end = f"{note} ± {group.number(deviation)}", max(end, mean + deviation)
        shift = 0.16 if len(values) > 1 else 0.0  # so that near points, and the line, stay visible
        x += values
        y += [place + shift * (-1) ** at for at in range(len(values))]
        beside = {"textcoords": "offset points", "va": "center"}
        clear = {
            "facecolor": "white",
            "edgecolor": "none",
            "pad": 1.0,
        }  # the line of chance ends where a note begins
        panel.annotate(note, (end, place), (8, 0), color=INK, fontsize=9, bbox=clear, zorder=6, **beside)
    if deviated:
        mean, place, deviation = zip(*deviated, strict=True)
        panel.errorbar(
            mean, place, xerr=deviation, fmt="none", ecolor=INK, capsize=4, elinewidth=1.3, zorder=3
        )
    panel.scatter(x, y, s=18, color=POINT, edgecolor="white", linewidth=0.6, zorder=4)
    if not math.isnan(metric.chance):
        panel.axvline(metric.chance, color=MUTED, linestyle=(0, (2, 2)), linewidth=1, zorder=5)
        above = panel.get_xaxis_transform()
        panel.text(metric.chance, 1.01, " chance", transform=above, color=MUTED, fontsize=8)
    _dress(group, panel, places, bottom)


def _dress(group: Group, panel: Axes, places: Sequence[float], bottom: float) -> None:
    title(panel, group.title)
    panel.set_yticks(places, [wrapped(row.label) for row in group.rows])
    panel.set_ylim(bottom + 0.15, -0.15)
    panel.set_xlabel(spoken(group.metric), color=INK)
    panel.margins(x=0.16)
    if all(value >= 0 for row in group.rows for value in row.values.get(group.metric.name, ())):
        panel.set_xlim(left=0)
    panel.grid(axis="x", color=LINE, linewidth=0.8, zorder=0)
    bare(panel, spines=("left",))


def draw_heat(cross_task: CrossTaskTable, path: Path) -> None:
    """Write the table as a heat map, a PNG; the colours of each column run from its worst to its best score."""
    names, columns = cross_task.aggregators, cross_task.columns
    above = ["\n".join(wrapped(line, _HEADER) for line in column.title) for column in columns]
    shade_AC = np.stack([_shades(column, names) for column in columns], axis=1)
    row = 0.3 * max(1.0, 0.62 * max(map(lines_of, names)))
    header = 0.17 * max(text.count("\n") + 1 for text in above)
    figure = new_figure(max(6.2, 3.4 + 1.35 * len(columns)), row * len(names) + header + 0.9)
    panel = figure.subplots()
    panel.imshow(np.ma.masked_invalid(shade_AC), cmap="Blues", vmin=-0.15, vmax=1.25, aspect="auto")
    for (a, c), shade in np.ndenumerate(shade_AC):
        note, colour = _note(columns[c], names[a]), "white" if shade > 0.62 else INK
        panel.text(c, a, note, ha="center", va="center", fontsize=8.5, color=colour)
    panel.set_xticks(range(len(columns)), above, fontsize=8.5)
    panel.xaxis.tick_top()
    panel.set_yticks(range(len(names)), [wrapped(name) for name in names], fontsize=9)
    heading = "primary metric (chance-normalised: 0 is chance, 100 the best possible)"
    figure.suptitle(heading, x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK)
    bare(panel)
    save(figure, path)


def _note(column: Column, aggregator: str) -> str:
    value, score = column.value(aggregator), column.chance_normalised(aggregator)
    if math.isnan(value):
        return "\u2013"
    return column.group.number(value) + ("" if math.isnan(score) else f"  ({score:.1f})")


def _shades(column: Column, aggregators: Sequence[str]) -> np.ndarray:
    """Return a column's shades `(A,)`: 0 for its worst and 1 for its best value, NaN where there is none."""
    return shaded(
        np.array([column.value(name) for name in aggregators]),
        higher_is_better=column.group.metric.higher_is_better,
    )


def shaded(value: np.ndarray, *, higher_is_better: bool) -> np.ndarray:
    """Bring values to 0 for the worst and 1 for the best of them, and to a half where all are the same; NaN stays."""
    known = value[~np.isnan(value)]
    if not known.size or known.min() == known.max():
        return value * 0 + 0.5
    position = (value - known.min()) / np.ptp(known)
    return position if higher_is_better else 1 - position
