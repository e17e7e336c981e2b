"""Score against cost: the primary metric over the cost of a training step, larger points for more weights."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from polypool.infra.compute.cost import UNIT
from polypool.pipelines.figures.scores import ScoredGroup, ScoredRow
from polypool.pipelines.figures.style import (
    BAR,
    INK,
    LINE,
    MUTED,
    POINT,
    apart,
    bare,
    lines_of,
    new_figure,
    save,
    title,
    wrapped,
)

_LINE = 0.17  # inches of a label's line
_AXES = {"step": f"processor time of a training step, in {UNIT}", "weights": "weights"}


def draw_costs(groups: Sequence[ScoredGroup], path: Path) -> bool:
    """Write a PNG with a panel for each group that has two rows with a cost; return whether there was one."""
    panels = [(group, *_points(group)) for group in groups]
    panels = [(group, name, rows) for group, name, rows in panels if len(rows) > 1]
    if not panels:
        return False
    heights = [max(2.4, _height(rows)) for *_, rows in panels]
    figure = new_figure(10.5, sum(heights) + 1.1 * len(panels))
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for (group, name, rows), panel, height in zip(panels, axes, heights, strict=True):
        draw_panel(panel, group, name, rows)
        _draw_names(panel, name, rows, share=_height(rows) / height)
    save(figure, path)
    return True


def _height(rows: Sequence[ScoredRow]) -> float:
    """Return the inches of the rows' names below each other."""
    return _LINE * len(rows) * max(lines_of(row.label) for row in rows)


def _points(group: ScoredGroup) -> tuple[str, Sequence[ScoredRow]]:
    """Return the cost that most rows know, and the rows that know it."""
    known = {name: [row for row in group.known if row.costs.get(name, math.nan) > 0] for name in _AXES}
    name = max(known, key=lambda name: len(known[name]))
    return name, known[name]


def draw_panel(panel: Axes, group: ScoredGroup, name: str, rows: Sequence[ScoredRow]) -> None:
    """Draw all of a panel but the labels of its points."""
    x, y, deviation = _numbers(name, rows)
    weights = np.nan_to_num(np.array([row.costs.get("weights", 0.0) for row in rows]))
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
    panel.set_xlabel(_AXES[name], color=INK)
    panel.set_ylabel(group.metric, color=INK)
    panel.grid(color=LINE, linewidth=0.8, zorder=0)
    bare(panel, spines=("left", "bottom"))
    note: dict[str, Any] = {"transform": panel.transAxes, "ha": "right", "fontsize": 8, "color": MUTED}
    panel.text(1.0, 1.02, "larger points: more weights; lines: deviation over seeds", **note)


def _numbers(name: str, rows: Sequence[ScoredRow]) -> np.ndarray:
    """Return costs, means and deviations, `(3, R)`."""
    return np.array([(row.costs[name], row.mean, np.nan_to_num(row.deviation)) for row in rows]).T


def _draw_names(panel: Axes, name: str, rows: Sequence[ScoredRow], *, share: float) -> None:
    """Write the rows' names beside the panel, of whose height they take a share, joined to the points by lines."""
    x, y, _ = _numbers(name, rows)
    low, high = panel.get_ylim()
    place_R = apart(y, share * (high - low) / len(rows))
    # within the panel's height as far as they fit
    place_R += max(0.0, low - place_R.min()) - max(0.0, place_R.max() - high)
    for row, point, place in zip(rows, zip(x, y, strict=True), place_R, strict=True):
        panel.annotate(
            wrapped(row.label),
            point,
            (1.03, place),
            textcoords=panel.get_yaxis_transform(),
            va="center",
            fontsize=8.5,
            color=INK,
            arrowprops={"arrowstyle": "-", "color": MUTED, "linewidth": 0.5, "zorder": 1},
        )


def _plain(value: float, _: int, *, firsts: Container[int]) -> str:
    """Write those ticks of each decade that begin with one of `firsts` as plain numbers."""
    first = value / 10 ** math.floor(math.log10(value) + 1e-9)
    return f"{value:g}" if round(first, 6) in firsts else ""
