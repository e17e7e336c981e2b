"""Accuracy against cost: the primary metric over the time of a training step, larger points for more weights."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from pipelines.comparison.runs.costs import Costs, costs_of
from pipelines.comparison.runs.groups import SECONDS, Group, Row, spoken
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

_ROW = 0.2  # inches of a label's line
_AXES = {"step_ms": "milliseconds of a training step", "seconds": "seconds of training", "weights": "weights"}
Point = tuple[Row, float, float]
"""A row, its cost and its weights."""


def draw_costs(groups: Sequence[Group], path: Path) -> bool:
    """Write a panel for each group that has two rows with a cost, as a PNG; return whether there was one."""
    panels = [(group, *_points(group)) for group in groups]
    panels = [(group, name, points) for group, name, points in panels if len(points) > 1]
    if not panels:
        return False
    heights = [max(2.2, _ROW * sum(lines_of(row.label) + 0.35 for row, *_ in of)) for *_, of in panels]
    figure = new_figure(9.5, sum(heights) + 1.1 * len(panels))
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for (group, name, points), panel, height in zip(panels, axes, heights, strict=True):
        _panel(panel, group, points, height)
        panel.set_xlabel(_AXES[name], color=INK)
    save(figure, path)
    return True


def _points(group: Group) -> tuple[str, list[Point]]:
    """Return the cost that most rows know, and the rows that know it, from the highest to the lowest on the figure."""
    known = {row.label: costs_of(row) for row in group.rows}
    best: tuple[str, list[Point]] = ("step_ms", [])
    for name in _AXES:
        points = []
        for row in group.rows:
            cost, mean = _cost(row, known[row.label], name), group.mean(row)
            if cost > 0 and not math.isnan(mean):
                points.append((row, cost, known[row.label].weights))
        if len(points) > len(best[1]):
            best = name, points
    return best[0], sorted(best[1], key=lambda point: -group.mean(point[0]))


def _cost(row: Row, costs: Costs, name: str) -> float:
    return row.mean(SECONDS.name) if name == "seconds" else getattr(costs, name)


def _panel(panel: Axes, group: Group, points: Sequence[Point], height: float) -> None:
    x = np.array([cost for _, cost, _ in points])
    y = np.array([group.mean(row) for row, *_ in points])
    weights = np.nan_to_num(np.array([weights for *_, weights in points]))
    deviation = np.nan_to_num(np.array([group.deviation(row) for row, *_ in points]))
    panel.set_xscale("log")
    ticks = FuncFormatter(partial(_plain, firsts=(1, 2, 5) if x.max() > 6 * x.min() else range(1, 10)))
    panel.xaxis.set_major_formatter(ticks)
    panel.xaxis.set_minor_formatter(ticks)
    if x.max() < 2 * x.min():  # so near that a logarithmic axis may have no more than one number to show
        panel.xaxis.set_major_locator(MaxNLocator(5))
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_locator(NullLocator())
    panel.errorbar(x, y, yerr=deviation, fmt="none", ecolor=BAR, elinewidth=1.4, zorder=2)
    sizes = 16 + 9 * np.log10(1 + weights)
    panel.scatter(x, y, s=sizes, color=POINT, edgecolor="white", linewidth=0.6, zorder=4)
    panel.set_xlim(x.min() / 1.15, x.max() * 1.15)
    margin = 0.06 * (np.ptp(y) or 1.0)
    low, high = (y - deviation).min() - margin, (y + deviation).max() + margin
    panel.set_ylim(low, high)
    # labels in a column on the right, in the order of the points, so that none covers another
    wanted = (high - y) / (high - low) * height
    places = spread(wanted, np.array([_ROW * (lines_of(row.label) + 0.35) for row, *_ in points]), height)
    right, beside = panel.get_xlim()[1], panel.transAxes
    lead = {"color": MUTED, "linewidth": 0.5, "alpha": 0.7, "clip_on": False, "zorder": 3}
    for (row, cost, _), mean, place in zip(points, y, places, strict=True):
        # level up to the edge and bent after it: lines in the order of the points never cross
        panel.plot([cost, right], [mean, mean], **lead)
        panel.plot([1.0, 1.06], [(mean - low) / (high - low), 1 - place / height], transform=beside, **lead)
        panel.text(
            1.065,
            1 - place / height,
            wrapped(row.label),
            transform=beside,
            va="center",
            fontsize=8.5,
            color=INK,
        )
    title(panel, group.title, pad=8)
    panel.set_ylabel(spoken(group.metric), color=INK)
    panel.grid(color=LINE, linewidth=0.8, zorder=0)
    bare(panel, spines=("left", "bottom"))
    panel.text(
        1.0,
        1.02,
        "larger points: more weights",
        transform=panel.transAxes,
        ha="right",
        fontsize=8,
        color=MUTED,
    )


def _plain(value: float, _: int, *, firsts: Container[int]) -> str:
    """Write the ticks of each decade that begin with some digits as plain numbers."""
    first = value / 10 ** math.floor(math.log10(value) + 1e-9)
    return f"{value:g}" if round(first, 6) in firsts else ""


def spread(wanted: np.ndarray, sizes: np.ndarray, room: float) -> np.ndarray:
    """Return places near those wanted, ascending, at which things of these sizes do not overlap within a room."""
    # pushed down from the top and up from the bottom; the mean of both keeps every distance
    down = _pushed(wanted, sizes, room)
    up = room - _pushed(room - wanted[::-1], sizes[::-1], room)[::-1]
    return (down + up) / 2


def _pushed(wanted: np.ndarray, sizes: np.ndarray, room: float) -> np.ndarray:
    """Push each thing behind the one before it, then what has left the room back into it."""
    places = wanted.astype(float).copy()
    least, most = 0.0, max(room, sizes.sum())
    for k, size in enumerate(sizes):
        places[k] = max(places[k], least + size / 2)
        least = places[k] + size / 2
    for k in range(len(places) - 1, -1, -1):
        places[k] = min(places[k], most - sizes[k] / 2)
        most = places[k] - sizes[k] / 2
    return places
