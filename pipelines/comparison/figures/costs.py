"""Accuracy against cost: the primary metric over the cost of a training step, larger points for more weights."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from infra.compute.cost import UNIT
from pipelines.comparison.figures.labels import label
from pipelines.comparison.runs.costs import costs_of
from pipelines.comparison.runs.groups import Group, Row, spoken
from pipelines.figures.style import BAR, INK, LINE, MUTED, POINT, bare, lines_of, new_figure, save, title

_ROW = 0.2  # inches of a label's line
_AXES = {"step": f"processor time of a training step, in {UNIT}", "weights": "weights"}
_COVERED = 0.02
"""Share of a label that may be covered before the figure is made taller."""
_TALLER = 1.35
_TRIES = 6
Point = tuple[Row, float, float]
"""A row, its cost and its weights."""
Panel = tuple[Group, str, Sequence[Point]]
"""A group, what its points cost, and the points."""


def draw_costs(groups: Sequence[Group], path: Path) -> bool:
    """Write a panel for each group that has two rows with a cost, as a PNG; return whether there was one."""
    panels = [(group, *_points(group)) for group in groups]
    panels = [(group, name, points) for group, name, points in panels if len(points) > 1]
    if not panels:
        return False
    heights = [max(2.4, _ROW * sum(lines_of(row.label) + 0.35 for row, *_ in of)) for *_, of in panels]
    for _ in range(_TRIES):
        figure, covered = _drawn(panels, heights)
        if max(covered) <= _COVERED:
            break
        heights = [
            height * _TALLER if share > _COVERED else height
            for height, share in zip(heights, covered, strict=True)
        ]
    save(figure, path)
    return True


def _drawn(panels: Sequence[Panel], heights: Sequence[float]) -> tuple[Figure, list[float]]:
    """Return the figure with panels of these heights, and what share of a label is covered in each."""
    figure = new_figure(9.5, sum(heights) + 1.1 * len(panels))
    FigureCanvasAgg(figure)  # which knows how large letters are
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for (group, name, points), panel in zip(panels, axes, strict=True):
        draw_panel(panel, group, points)
        panel.set_xlabel(_AXES[name], color=INK)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # labels are placed in it as it is now
    return figure, [
        _label(panel, group, points) for (group, _, points), panel in zip(panels, axes, strict=True)
    ]


def _points(group: Group) -> tuple[str, list[Point]]:
    """Return the cost that most rows know, and the rows that know it."""
    known = {row.label: costs_of(row) for row in group.rows}
    best: tuple[str, list[Point]] = ("step", [])
    for name in _AXES:
        points = []
        for row in group.rows:
            cost, mean = getattr(known[row.label], name), group.mean(row)
            if cost > 0 and not math.isnan(mean):
                points.append((row, cost, known[row.label].weights))
        if len(points) > len(best[1]):
            best = name, points
    return best


def draw_panel(panel: Axes, group: Group, points: Sequence[Point]) -> None:
    """Draw all of a panel but the labels of its points."""
    x, y, deviation = _numbers(group, points)
    weights = np.nan_to_num(np.array([weights for *_, weights in points]))
    panel.set_xscale("log")
    ticks = FuncFormatter(partial(_plain, firsts=(1, 2, 5) if x.max() > 6 * x.min() else range(1, 10)))
    panel.xaxis.set_major_formatter(ticks)
    panel.xaxis.set_minor_formatter(ticks)
    if x.max() < 2 * x.min():  # so near that a logarithmic axis may have no more than one number to show
        panel.xaxis.set_major_locator(MaxNLocator(5))
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_locator(NullLocator())
    panel.errorbar(x, y, yerr=deviation, fmt="none", ecolor=BAR, elinewidth=1.4, zorder=2)
    panel.scatter(
        x, y, s=16 + 9 * np.log10(1 + weights), color=POINT, edgecolor="white", linewidth=0.6, zorder=4
    )
    beside = max((x.max() / x.min()) ** 0.16, 1.15)
    panel.set_xlim(x.min() / beside, x.max() * beside)
    margin = 0.08 * (np.ptp(y) or 1.0)
    panel.set_ylim((y - deviation).min() - margin, (y + deviation).max() + margin)
    title(panel, group.title, pad=8)
    panel.set_ylabel(spoken(group.metric), color=INK)
    panel.grid(color=LINE, linewidth=0.8, zorder=0)
    bare(panel, spines=("left", "bottom"))
    note = {"transform": panel.transAxes, "ha": "right", "fontsize": 8, "color": MUTED}
    panel.text(1.0, 1.02, "larger points: more weights; lines: deviation over seeds", **note)


def _numbers(group: Group, points: Sequence[Point]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = np.array([cost for _, cost, _ in points])
    y = np.array([group.mean(row) for row, *_ in points])
    return x, y, np.nan_to_num(np.array([group.deviation(row) for row, *_ in points]))


def _label(panel: Axes, group: Group, points: Sequence[Point]) -> float:
    x, y, deviation = _numbers(group, points)
    lines = [(a, b - d, a, b + d) for a, b, d in zip(x, y, deviation, strict=True)]
    return label(panel, x, y, [row.label for row, *_ in points], crossed=lines)


def _plain(value: float, _: int, *, firsts: Container[int]) -> str:
    """Write the ticks of each decade that begin with some digits as plain numbers."""
    first = value / 10 ** math.floor(math.log10(value) + 1e-9)
    return f"{value:g}" if round(first, 6) in firsts else ""
