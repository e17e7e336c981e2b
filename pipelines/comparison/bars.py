"""The figure of all groups: one panel a group, one bar an aggregator, one point a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from pipelines.comparison.groups import Group, Row
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


def draw_bars(groups: Sequence[Group], path: Path) -> None:
    """Write the groups as a PNG; bars are means over runs, lines their sample standard deviations."""
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
    panel.barh(places, [row.mean(metric) for row in group.rows], height=0.62, color=BAR, zorder=2)
    for place, row in zip(places, group.rows, strict=True):
        values, mean, deviation = row.values.get(metric, ()), row.mean(metric), row.deviation(metric)
        if not values:
            continue
        note, end = f"{mean:.1f}", max(values)
        if not math.isnan(deviation):
            panel.errorbar(mean, place, xerr=deviation, color=INK, capsize=4, linewidth=1.3, zorder=3)
            note, end = f"{mean:.1f} ± {deviation:.1f}", max(end, mean + deviation)
        shift = 0.16 if len(values) > 1 else 0.0  # so that near points, and the line, stay visible
        apart = [place + shift * (-1) ** at for at in range(len(values))]
        panel.scatter(values, apart, s=18, color=POINT, edgecolor="white", linewidth=0.6, zorder=4)
        beside = {"textcoords": "offset points", "va": "center"}
        panel.annotate(note, (end, place), (8, 0), color=INK, fontsize=9, **beside)
    if not math.isnan(group.chance):
        panel.axvline(group.chance, color=MUTED, linestyle=(0, (2, 2)), linewidth=1, zorder=5)
        above = panel.get_xaxis_transform()
        panel.text(group.chance, 1.01, " chance", transform=above, color=MUTED, fontsize=8)
    _dress(group, panel, places, bottom)


def _dress(group: Group, panel: Axes, places: Sequence[float], bottom: float) -> None:
    title(panel, group.title)
    panel.set_yticks(places, [wrapped(row.label) for row in group.rows])
    panel.set_ylim(bottom + 0.15, -0.15)
    panel.set_xlabel(group.metric, color=INK)
    panel.margins(x=0.16)
    panel.set_xlim(left=0)
    panel.grid(axis="x", color=LINE, linewidth=0.8, zorder=0)
    bare(panel, keep=("left",))
