"""Figures of groups: the score beside the cost of a training step, and over one parameter of an aggregator.

Of `kmax(k=1)`, `kmax(k=2)`, ... the latter is figure 6 of VSE-infinity.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from polypool.infra.compute.cost import UNIT
from polypool.infra.spec import Spec, without
from polypool.pipelines.comparison.groups import Group, Row
from polypool.pipelines.comparison.tables.differences import two_digits
from polypool.pipelines.figures.style import (
    BAR,
    MUTED,
    POINT,
    apart,
    frame,
    lines_of,
    new_figure,
    stacked,
    wrapped,
)

_TITLE = 110  # characters in a line of a title
_SIDE = 26  # characters in a line below the costs
_ROW = 0.27  # inches of a row's line
_AXES = {"step": f"processor time of a training step, in {UNIT}", "weights": "weights"}
_FEWEST = 3  # values of a parameter that make a curve
_COLOURS = (POINT, "#b5541c", "#3d7a3f", "#7a4f9e")
_BEST = _COLOURS[1]  # of rows in the confidence set of the best
_LOGARITHMIC = 8.0  # how many times the smallest value the largest is before the axis is logarithmic
_LABEL = 0.042  # height of a line of a label, as a share of a panel's

Curves = Mapping[str, Mapping[float, Row]]
"""By the name of an aggregator without a parameter, and what else its rows share: the rows by values, ascending."""


def draw_costs(groups: Sequence[Group]) -> Figure | None:
    """Draw a pair of panels for each group that has two rows with a cost; None where there is none."""
    found = [of for group in groups if len((of := _costly(group))[2]) > 1]
    if not found:
        return None
    heights = [_ROW * (1 + sum(map(lines_of, _names(rows)))) for *_, rows in found]
    figure = new_figure(10.5, sum(heights) + 1.3 * len(found))
    panels = figure.subplots(len(found), 2, squeeze=False, height_ratios=heights, width_ratios=(3, 1))
    for of, pair in zip(found, panels, strict=True):
        draw_rows(*pair, *of)
    return figure


def _names(rows: Sequence[Row]) -> list[str]:
    """Return the rows' aggregators where these tell them apart, without what was chosen for each; else their labels."""
    names = [row.aggregator or row.label for row in rows]
    return names if len({*names}) == len(names) else [row.label for row in rows]


def _costly(group: Group) -> tuple[Group, str, Sequence[Row]]:
    """Return a group with the cost that most of its rows know, and the rows that know it."""
    known = {name: [row for row in group.known if getattr(row.costs, name) > 0] for name in _AXES}
    name = max(known, key=lambda name: len(known[name]))
    return group, name, known[name]


def draw_rows(scores: Axes, costs: Axes, group: Group, name: str, rows: Sequence[Row]) -> None:
    """Draw a point with an interval for each row, the best on top, and beside it a bar for its cost."""
    best = group.judged.confidence_set if group.judged else ()
    colours = [_BEST if row.label in best else POINT for row in rows]
    mean_R, cost_R = (
        np.array(values) for values in ([*map(group.mean, rows)], [getattr(row.costs, name) for row in rows])
    )
    low_R, high_R = np.array([_interval(group, row) for row in rows]).T
    reach_2R = np.maximum(
        (mean_R - low_R, high_R - mean_R), 0.0
    )  # a mean may be beyond an end by its last digit
    places = range(len(rows))
    scores.errorbar(mean_R, places, xerr=reach_2R, fmt="none", ecolor=BAR, elinewidth=2.2, zorder=2)
    scores.scatter(mean_R, places, s=34, c=colours, edgecolor="white", linewidth=0.6, zorder=4)
    scores.set_yticks(places, map(wrapped, _names(rows)))
    costs.barh(places, cost_R, height=0.5, color=BAR, zorder=2)
    for place, cost in zip(places, cost_R, strict=True):
        costs.annotate(
            two_digits(cost), (cost, place), (4, 0), textcoords="offset points", va="center", fontsize=8.5
        )
    costs.margins(x=0.22)
    costs.set_yticks(places, [""] * len(rows))
    for panel in (scores, costs):
        panel.set_ylim(len(rows) - 0.4, -0.6)
    lines = "95 % intervals" if group.judged else "deviation over seeds"
    marked = "; orange: the confidence set of the best" if best else ""
    heading = wrapped(group.title, _TITLE)
    frame(
        scores,
        heading,
        x=f"{group.ranked_by.label}\nlines: {lines}{marked}",
        pad=8,
        grid="x",
        spines=("bottom",),
    )
    frame(costs, "", x=wrapped(_AXES[name], _SIDE), grid="x", spines=("bottom",))


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
        ends = np.array([_interval(group, row) for row in rows.values()]).T
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
    frame(panel, group.title, x=parameter, y=group.ranked_by.label)


def _interval(group: Group, row: Row) -> tuple[float, float]:
    """Return the 95 % interval of a row's mean, else the mean with its deviation on both sides."""
    ends = group.judged.intervals.get(row.label) if group.judged else None
    if ends is not None and not math.isnan(ends[0]):
        return ends
    mean, deviation = group.mean(row), float(np.nan_to_num(group.deviation(row)))
    return mean - deviation, mean + deviation


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
