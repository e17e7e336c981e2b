"""The score over one parameter of an aggregator: of `kmax(k=1)`, `kmax(k=2)`, ... it is VSE-infinity's figure 6."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from infra.spec import Spec, without
from pipelines.comparison.runs.groups import Group, Row, spoken
from pipelines.figures.style import BAR, INK, LINE, MUTED, POINT, bare, new_figure, save, title

_FEWEST = 3
"""Values of a parameter that make a curve."""
_COLOURS = (POINT, "#b5541c", "#3d7a3f", "#7a4f9e")
_LOGARITHMIC = 8.0
"""How many times the smallest value the largest is before the axis is logarithmic."""
_LABEL = 0.042
"""Height of a line of a label, as a share of a panel's."""


@dataclass(frozen=True, kw_only=True)
class ParameterCurve:
    """Rows that differ in the value of one number of their aggregator alone.

    Attributes:
        name: the aggregator without that number, and what else its rows share.
        parameter: the number's name.
        value_P: its values, ascending.
        rows: one for each.
    """

    name: str
    parameter: str
    value_P: np.ndarray
    rows: tuple[Row, ...]


def curves_of(group: Group) -> tuple[ParameterCurve, ...]:
    """Return the curves of a group, by name; none where fewer than three values of a parameter were tried."""
    found: dict[tuple[str, str], dict[float, Row]] = {}
    for row in group.rows:
        if row.specs and not math.isnan(group.mean(row)):
            for name, parameter, value in _places(row):
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


def _places(row: Row) -> Iterator[tuple[str, str, float]]:
    """Yield every number in a row's first aggregator: what the row is called without it, its name, its value."""
    own, *others = row.specs
    for parameter, value in Spec.parse(own).params.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            rest = (without(own, parameter), *(f"text {other}" for other in others))
            shared = (*rest, row.recipe, row.model, row.settings)
            yield ", ".join(part for part in shared if part), parameter, float(value)


def draw_parameters(groups: Sequence[Group], path: Path) -> bool:
    """Write a panel for each group and parameter that there is a curve of, as a PNG; return whether there was one.

    Bands are the 95 % intervals over seeds and queries where the rows were judged, else sample standard deviations.
    Rows that are on no curve of the panel are lines across it.
    """
    panels: list[tuple[Group, list[ParameterCurve]]] = []
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


def draw_panel(panel: Axes, group: Group, curves: Sequence[ParameterCurve]) -> None:
    """Draw the curves of one parameter, and all other rows of the group as lines."""
    on_curves = {row.label for curve in curves for row in curve.rows}
    for curve, colour in zip(curves, cycle(_COLOURS), strict=False):
        mean_P = np.array([group.mean(row) for row in curve.rows])
        low_P, high_P = np.array([_around(group, row) for row in curve.rows]).T
        panel.fill_between(curve.value_P, low_P, high_P, color=colour, alpha=0.13, linewidth=0, zorder=2)
        panel.plot(curve.value_P, mean_P, "o-", color=colour, label=curve.name, zorder=4)
    _draw_others(panel, group, [row for row in group.rows if row.label not in on_curves])
    value_P = np.unique(np.concatenate([curve.value_P for curve in curves]))
    if value_P.min() > 0 and value_P.max() > _LOGARITHMIC * value_P.min():
        panel.set_xscale("log")
    panel.set_xticks(value_P, [f"{value:g}" for value in value_P])
    panel.set_xticks([], minor=True)
    title(panel, group.title)
    panel.set_xlabel(curves[0].parameter, color=INK)
    panel.set_ylabel(spoken(group.metric), color=INK)
    panel.legend(frameon=False, fontsize=9, loc="best")
    panel.grid(color=LINE, linewidth=0.8, zorder=0)
    bare(panel, spines=("left", "bottom"))


def _draw_others(panel: Axes, group: Group, rows: Sequence[Row]) -> None:
    """Draw rows as lines across the panel, and their names beside it."""
    rows = [row for row in rows if not math.isnan(group.mean(row))]
    mean_R = np.array([group.mean(row) for row in rows])
    for mean in mean_R:
        panel.axhline(mean, color=BAR, linewidth=1, linestyle=(0, (4, 2)), zorder=1)
    at = {"transform": panel.get_yaxis_transform(), "va": "center", "fontsize": 8, "color": MUTED}
    for row, mean, place in zip(rows, mean_R, apart(mean_R, _LABEL * np.ptp(panel.get_ylim())), strict=True):
        panel.text(1.01, place, f"{row.label}  {group.number(mean)}", **at)


def apart(y_R: np.ndarray, gap: float) -> np.ndarray:
    """Return places `(R,)` in the order of `y_R`, as near to these as can be, no two nearer than `gap`.

    Neighbours that are too near move as one block, whose middle stays where the mean of its members was.
    """
    order_R = np.argsort(y_R, kind="stable")
    blocks: list[list[float]] = []  # the places wanted of each block, lowest first
    for y in y_R[order_R]:
        blocks.append([float(y)])
        while len(blocks) > 1 and _first(blocks[-1], gap) - _last(blocks[-2], gap) < gap:
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    places = [_first(block, gap) + at * gap for block in blocks for at in range(len(block))]
    place_R = np.empty_like(y_R)
    place_R[order_R] = places
    return place_R


def _first(block: Sequence[float], gap: float) -> float:
    return sum(block) / len(block) - gap * (len(block) - 1) / 2


def _last(block: Sequence[float], gap: float) -> float:
    return _first(block, gap) + gap * (len(block) - 1)


def _around(group: Group, row: Row) -> tuple[float, float]:
    """Return how far a row's mean is known: its interval, else its deviation, else the mean itself."""
    low, high = (
        group.judged.intervals.get(row.label, (math.nan, math.nan)) if group.judged else (math.nan,) * 2
    )
    if math.isnan(low):
        deviation = np.nan_to_num(group.deviation(row))
        low, high = group.mean(row) - deviation, group.mean(row) + deviation
    return low, high
