"""Scores of a comparison: what its figures draw, and a bar for each row with a point for each run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from polypool.pipelines.figures.style import (
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


@dataclass(frozen=True, kw_only=True)
class ScoredRow:
    """A row of a comparison; what is unknown is NaN.

    Attributes:
        label: its name.
        values: the metric of each run.
        mean, deviation: over runs; sample standard deviation.
        interval: low and high end, of 95 % or else of one standard deviation.
        costs: numbers by name, such as `step` and `weights`.
        parameters: for each number in the aggregator's spec, the row's name without it, its name, its value.
    """

    label: str
    values: tuple[float, ...] = ()
    mean: float
    deviation: float = math.nan
    interval: tuple[float, float] = (math.nan, math.nan)
    costs: Mapping[str, float] = field(default_factory=dict)
    parameters: tuple[tuple[str, str, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class ScoredGroup:
    """Rows that are drawn in one panel, the best first.

    Attributes:
        title: stands above the panel.
        metric: labels the axis.
        chance: the metric's value by chance; NaN if unknown.
        digits: decimals that are shown of the metric.
        rows: the rows.
    """

    title: str
    metric: str
    chance: float = math.nan
    digits: int = 1
    rows: tuple[ScoredRow, ...]

    @property
    def known(self) -> tuple[ScoredRow, ...]:
        """The rows with a mean."""
        return tuple(row for row in self.rows if not math.isnan(row.mean))

    def number(self, value: float) -> str:
        return f"{value:.{self.digits}f}"


def draw_bars(groups: Sequence[ScoredGroup], path: Path) -> None:
    """Write a PNG with a panel for each group: a bar for each row, the best on top, and a point for each run.

    Bars are means over runs, lines their sample standard deviations.
    """
    spans = [sum(_height(row) for row in group.rows) + 0.3 for group in groups]
    figure = new_figure(8.5, 0.42 * sum(spans) + 1.1 * len(groups))
    axes = figure.subplots(len(groups), 1, squeeze=False, height_ratios=spans)[:, 0]
    for group, panel in zip(groups, axes, strict=True):
        _panel(group, panel)
    save(figure, path)


def _height(row: ScoredRow) -> float:
    """The room a bar takes, of which labels of several lines need more."""
    return max(1.0, 0.42 * lines_of(row.label))


def _panel(group: ScoredGroup, panel: Axes) -> None:
    places, bottom = [], 0.0
    for row in group.rows:
        places.append(bottom + _height(row) / 2)
        bottom += _height(row)
    panel.barh(places, [row.mean for row in group.rows], height=0.62, color=BAR, zorder=2)
    for place, row in zip(places, group.rows, strict=True):
        if row.values:
            _draw_row(panel, group, row, place)
    if not math.isnan(group.chance):
        panel.axvline(group.chance, color=MUTED, linestyle=(0, (2, 2)), linewidth=1, zorder=5)
        above = panel.get_xaxis_transform()
        panel.text(group.chance, 1.01, " chance", transform=above, color=MUTED, fontsize=8)
    title(panel, group.title)
    panel.set_yticks(places, [wrapped(row.label) for row in group.rows])
    panel.set_ylim(bottom + 0.15, -0.15)
    panel.set_xlabel(group.metric, color=INK)
    panel.margins(x=0.16)
    if all(value >= 0 for row in group.rows for value in row.values):
        panel.set_xlim(left=0)
    panel.grid(axis="x", color=LINE, linewidth=0.8, zorder=0)
    bare(panel, spines=("left",))


def _draw_row(panel: Axes, group: ScoredGroup, row: ScoredRow, place: float) -> None:
    """Draw the points of a row's runs, their deviation and the mean in figures."""
    note, end = group.number(row.mean), max(row.values)
    if not math.isnan(row.deviation):
        note, end = f"{note} ± {group.number(row.deviation)}", max(end, row.mean + row.deviation)
        line: dict[str, Any] = {"fmt": "none", "ecolor": INK, "capsize": 4, "elinewidth": 1.3}
        panel.errorbar(row.mean, place, xerr=row.deviation, zorder=3, **line)
    shift = 0.16 if len(row.values) > 1 else 0.0  # so that near points, and the line, stay visible
    y = [place + shift * (-1) ** at for at in range(len(row.values))]
    panel.scatter(row.values, y, s=18, color=POINT, edgecolor="white", linewidth=0.6, zorder=4)
    clear = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}  # over the line of chance
    beside: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 9, "bbox": clear}
    panel.annotate(note, (end, place), (8, 0), color=INK, zorder=6, **beside)
