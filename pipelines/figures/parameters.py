"""The score over one parameter of an aggregator: of `kmax(k=1)`, `kmax(k=2)`, ... it is VSE-infinity's figure 6."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from polypool.pipelines.figures.scores import ScoredGroup, ScoredRow
from polypool.pipelines.figures.style import (
    BAR,
    INK,
    LINE,
    MUTED,
    POINT,
    apart,
    bare,
    new_figure,
    save,
    title,
)

_FEWEST = 3
"""Values of a parameter that make a curve."""
_COLOURS = (POINT, "#b5541c", "#3d7a3f", "#7a4f9e")
_LOGARITHMIC = 8.0
"""How many times the smallest value the largest is before the axis is logarithmic."""
_LABEL = 0.042
"""Height of a line of a label, as a share of a panel's."""


@dataclass(frozen=True, kw_only=True)
class ParameterCurve:
    """Rows whose aggregators differ in one number only.

    Attributes:
        name: the aggregator without that number, and what else the rows share.
        parameter: the number's name.
        value_P: its values, ascending.
        rows: one for each.
    """

    name: str
    parameter: str
    value_P: np.ndarray
    rows: tuple[ScoredRow, ...]


def curves_of(group: ScoredGroup) -> tuple[ParameterCurve, ...]:
    """Return the curves of a group by name: of every parameter of which three values were tried."""
    found: dict[tuple[str, str], dict[float, ScoredRow]] = {}
    for row in group.known:
        for name, parameter, value in row.parameters:
            found.setdefault((name, parameter), {})[value] = row
    return tuple(
        ParameterCurve(
            name=name,
            parameter=parameter,
            value_P=np.array(sorted(rows)),
            rows=tuple(rows[value] for value in sorted(rows)),
        )
        for (name, parameter), rows in sorted(found.items())
        if len(rows) >= _FEWEST
    )


def draw_parameters(groups: Sequence[ScoredGroup], path: Path) -> bool:
    """Write a PNG with a panel for each group and parameter that has a curve; return whether there was one.

    Bands are the rows' intervals. Rows that are on no curve of the panel are lines across it.
    """
    panels: list[tuple[ScoredGroup, list[ParameterCurve]]] = []
    for group in groups:
        by_parameter: dict[str, list[ParameterCurve]] = {}
        for curve in curves_of(group):
            by_parameter.setdefault(curve.parameter, []).append(curve)
        panels += [(group, curves) for curves in by_parameter.values()]
    if not panels:
        return False
    figure = new_figure(8.5, 4.0 * len(panels))
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for (group, curves), panel in zip(panels, axes, strict=True):
        draw_panel(panel, group, curves)
    save(figure, path)
    return True


def draw_panel(panel: Axes, group: ScoredGroup, curves: Sequence[ParameterCurve]) -> None:
    """Draw the curves of one parameter, and all other rows of the group as lines."""
    on_curves = {row.label for curve in curves for row in curve.rows}
    for curve, colour in zip(curves, cycle(_COLOURS), strict=False):
        mean_P, (low_P, high_P) = _means(curve.rows), np.array([row.interval for row in curve.rows]).T
        panel.fill_between(curve.value_P, low_P, high_P, color=colour, alpha=0.13, linewidth=0, zorder=2)
        panel.plot(curve.value_P, mean_P, "o-", color=colour, label=curve.name, zorder=4)
    _draw_others(panel, group, [row for row in group.known if row.label not in on_curves])
    value_P = np.unique(np.concatenate([curve.value_P for curve in curves]))
    if value_P.min() > 0 and value_P.max() > _LOGARITHMIC * value_P.min():
        panel.set_xscale("log")
    panel.set_xticks(value_P, [f"{value:g}" for value in value_P])
    panel.set_xticks([], minor=True)
    title(panel, group.title)
    panel.set_xlabel(curves[0].parameter, color=INK)
    panel.set_ylabel(group.metric, color=INK)
    panel.legend(frameon=False, fontsize=9, loc="best")
    panel.grid(color=LINE, linewidth=0.8, zorder=0)
    bare(panel, spines=("left", "bottom"))


def _means(rows: Sequence[ScoredRow]) -> np.ndarray:
    return np.array([row.mean for row in rows])


def _draw_others(panel: Axes, group: ScoredGroup, rows: Sequence[ScoredRow]) -> None:
    """Draw rows as lines across the panel, and their names beside it."""
    mean_R = _means(rows)
    for mean in mean_R:
        panel.axhline(mean, color=BAR, linewidth=1, linestyle=(0, (4, 2)), zorder=1)
    gap = _LABEL * np.ptp(panel.get_ylim())
    beside = panel.get_yaxis_transform()
    for row, mean, place in zip(rows, mean_R, apart(mean_R, gap), strict=True):
        note = f"{row.label}  {group.number(mean)}"
        panel.text(1.01, place, note, transform=beside, va="center", fontsize=8, color=MUTED)
