"""Figures of groups: the score over one parameter of an aggregator.

Of `kmax(k=1)`, `kmax(k=2)`, ... it is figure 6 of VSE-infinity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from polypool.infra.spec import Spec, without
from polypool.pipelines.comparison.groups import Group, Row
from polypool.pipelines.figures.style import BAR, MUTED, POINT, apart, frame, stacked

_FEWEST = 3  # values of a parameter that make a curve
_COLOURS = (POINT, "#b5541c", "#3d7a3f", "#7a4f9e")
_LOGARITHMIC = 8.0  # how many times the smallest value the largest is before the axis is logarithmic
_LABEL = 0.042  # height of a line of a label, as a share of a panel's

Curves = Mapping[str, Mapping[float, Row]]
"""By the name of an aggregator without a parameter, and what else its rows share: the rows by values, ascending."""


def curves_of(group: Group) -> dict[str, Curves]:
    """Return the curves of each parameter of which three values were tried in rows that differ in nothing else."""
    found: dict[str, dict[str, dict[float, Row]]] = {}
    for row in group.known:
        for name, parameter, value in _parameters(row):
            found.setdefault(parameter, {}).setdefault(name, {})[value] = row
    several = {
        parameter: {
            name: dict(sorted(rows.items())) for name, rows in sorted(of.items()) if len(rows) >= _FEWEST
        }
        for parameter, of in sorted(found.items())
    }
    return {parameter: curves for parameter, curves in several.items() if curves}


def _parameters(row: Row) -> Iterator[tuple[str, str, float]]:
    """Yield, for every number in a row's first aggregator, the row's name without it, its name and its value."""
    for parameter, value in Spec.parse(row.specs[0]).params.items() if row.specs else ():
        if isinstance(value, int | float) and not isinstance(value, bool):
            rest = (without(row.specs[0], parameter), *(f"text {other}" for other in row.specs[1:]))
            shared = (*rest, row.recipe, row.model, row.settings)
            yield ", ".join(part for part in shared if part), parameter, float(value)


def draw_parameters(groups: Sequence[Group]) -> Figure | None:
    """Draw a panel for each group and parameter that has a curve; None where there is none.

    Bands are the rows' intervals. Rows that are on no curve of the panel are lines across it.
    """
    found = [(group, *of) for group in groups for of in curves_of(group).items()]
    if not found:
        return None
    figure, panels = stacked(8.5, [4.0] * len(found), between=0)
    for of, panel in zip(found, panels, strict=True):
        draw_curves(panel, *of)
    return figure


def draw_curves(panel: Axes, group: Group, parameter: str, curves: Curves) -> None:
    """Draw the curves of one parameter, and all other rows of the group as lines."""
    for (name, rows), colour in zip(curves.items(), cycle(_COLOURS), strict=False):
        ends = np.array([group.interval(row) for row in rows.values()]).T
        panel.fill_between([*rows], *ends, color=colour, alpha=0.13, linewidth=0, zorder=2)
        panel.plot([*rows], [*map(group.mean, rows.values())], "o-", color=colour, label=name, zorder=4)
    on_curves = {row.label for rows in curves.values() for row in rows.values()}
    _draw_others(panel, group, [row for row in group.known if row.label not in on_curves])
    values = sorted({value for rows in curves.values() for value in rows})
    if values[0] > 0 and values[-1] > _LOGARITHMIC * values[0]:
        panel.set_xscale("log")
    panel.set_xticks(values, [f"{value:g}" for value in values])
    panel.set_xticks([], minor=True)
    panel.legend(frameon=False, fontsize=9, loc="best")
    frame(panel, group.title, x=parameter, y=group.metric.label)


def _draw_others(panel: Axes, group: Group, rows: Sequence[Row]) -> None:
    """Draw rows as lines across the panel, and their names beside it."""
    mean_R = np.array([group.mean(row) for row in rows])
    for mean in mean_R:
        panel.axhline(mean, color=BAR, linewidth=1, linestyle=(0, (4, 2)), zorder=1)
    gap = _LABEL * np.ptp(panel.get_ylim())
    beside = panel.get_yaxis_transform()
    for row, mean, place in zip(rows, mean_R, apart(mean_R, gap), strict=True):
        note = f"{row.label}  {group.number(mean)}"
        panel.text(1.01, place, note, transform=beside, va="center", fontsize=8, color=MUTED)
