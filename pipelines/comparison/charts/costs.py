"""Score against cost: the primary metric over the cost of a training step, larger points for more weights."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from polypool.infra.compute.cost import UNIT
from polypool.pipelines.comparison.groups import Group, Row
from polypool.pipelines.figures.style import BAR, INK, MUTED, POINT, apart, frame, lines_of, stacked, wrapped

_LINE = 0.17  # inches of a label's line
_AXES = {"step": f"processor time of a training step, in {UNIT}", "weights": "weights"}


def draw_costs(groups: Sequence[Group]) -> Figure | None:
    """Draw a panel for each group that has two rows with a cost; None where there is none."""
    found = [of for group in groups if len((of := _costly(group))[2]) > 1]
    if not found:
        return None
    heights = [max(2.4, _height(rows)) for *_, rows in found]
    figure, panels = stacked(10.5, heights)
    for of, panel, height in zip(found, panels, heights, strict=True):
        draw_panel(panel, *of)
        _draw_names(panel, *of, share=_height(of[2]) / height)
    return figure


def _height(rows: Sequence[Row]) -> float:
    """Return the inches of the rows' names below each other."""
    return _LINE * len(rows) * max(lines_of(row.label) for row in rows)


def _costly(group: Group) -> tuple[Group, str, Sequence[Row]]:
    """Return a group with the cost that most of its rows know, and the rows that know it."""
    known = {name: [row for row in group.known if getattr(row.costs, name) > 0] for name in _AXES}
    name = max(known, key=lambda name: len(known[name]))
    return group, name, known[name]


def draw_panel(panel: Axes, group: Group, name: str, rows: Sequence[Row]) -> None:
    """Draw all of a panel but the labels of its points."""
    x, y, deviation = _numbers(group, name, rows)
    weights = np.nan_to_num(np.array([row.costs.weights for row in rows]))
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
    frame(panel, group.title, x=_AXES[name], y=group.ranked_by.label, pad=8)
    note: dict[str, Any] = {"transform": panel.transAxes, "ha": "right", "fontsize": 8, "color": MUTED}
    panel.text(1.0, 1.02, "larger points: more weights; lines: deviation over seeds", **note)


def _numbers(group: Group, name: str, rows: Sequence[Row]) -> np.ndarray:
    """Return costs, means and deviations, `(3, R)`."""
    deviations = np.nan_to_num([group.deviation(row) for row in rows])
    return np.array([[getattr(row.costs, name) for row in rows], [*map(group.mean, rows)], deviations])


def _draw_names(panel: Axes, group: Group, name: str, rows: Sequence[Row], *, share: float) -> None:
    """Write the rows' names beside the panel, of whose height they take a share, joined to the points by lines."""
    x, y, _ = _numbers(group, name, rows)
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
