"""Figures of groups: the score over the cost of a training step, and over one parameter of an aggregator.

Of `kmax(k=1)`, `kmax(k=2)`, ... the latter is figure 6 of VSE-infinity.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from polypool.infra.compute.cost import UNIT
from polypool.infra.spec import Spec, without
from polypool.pipelines.comparison.groups import Group, Row
from polypool.pipelines.figures.style import BAR, INK, MUTED, POINT, apart, frame, lines_of, stacked, wrapped

_TITLE = 110  # characters in a line of a title
_LINE = 0.17  # inches of a label's line
_AXES = {"step": f"processor time of a training step, in {UNIT}", "weights": "weights"}
_FEWEST = 3  # values of a parameter that make a curve
_COLOURS = (POINT, "#b5541c", "#3d7a3f", "#7a4f9e")
_BEST = _COLOURS[1]  # of rows in the confidence set of the best
_LOGARITHMIC = 8.0  # how many times the smallest value the largest is before the axis is logarithmic
_LABEL = 0.042  # height of a line of a label, as a share of a panel's

Curves = Mapping[str, Mapping[float, Row]]
"""By the name of an aggregator without a parameter, and what else its rows share: the rows by values, ascending."""


def draw_costs(groups: Sequence[Group]) -> Figure | None:
    """Draw a panel for each group that has two rows with a cost; None where there is none."""
    found = [of for group in groups if len((of := _costly(group))[2]) > 1]
    if not found:
        return None
    heights = [max(2.4, _height(rows)) for *_, rows in found]
    figure, panels = stacked(10.5, heights)
    for of, panel, height in zip(found, panels, heights, strict=True):
        draw_points(panel, *of)
        _draw_names(panel, *of, share=_height(of[2]) / height)
    return figure


def _height(rows: Sequence[Row]) -> float:
    """Return the inches of the rows' names below each other."""
    return _LINE * len(rows) * max(map(lines_of, _names(rows)))


def _names(rows: Sequence[Row]) -> list[str]:
    """Return the rows' aggregators where these tell them apart, without what was chosen for each; else their labels."""
    names = [row.aggregator or row.label for row in rows]
    return names if len({*names}) == len(names) else [row.label for row in rows]


def _costly(group: Group) -> tuple[Group, str, Sequence[Row]]:
    """Return a group with the cost that most of its rows know, and the rows that know it."""
    known = {name: [row for row in group.known if getattr(row.costs, name) > 0] for name in _AXES}
    name = max(known, key=lambda name: len(known[name]))
    return group, name, known[name]


def draw_points(panel: Axes, group: Group, name: str, rows: Sequence[Row]) -> None:
    """Draw all of a panel but the labels of its points."""
    x, y, low, high = _numbers(group, name, rows)
    best = group.judged.confidence_set if group.judged else ()
    weights = np.nan_to_num(np.array([row.costs.weights for row in rows]))
    panel.set_xscale("log")
    ticks = FuncFormatter(partial(_plain, firsts=(1, 2, 5) if x.max() > 6 * x.min() else range(1, 10)))
    panel.xaxis.set_major_formatter(ticks)
    panel.xaxis.set_minor_formatter(ticks)
    if x.max() < 2 * x.min():  # so near that a logarithmic axis may have no more than one number to show
        panel.xaxis.set_major_locator(MaxNLocator(5))
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_locator(NullLocator())
    reach = np.maximum((y - low, high - y), 0.0)  # a mean may be beyond an end by its last digit
    panel.errorbar(x, y, yerr=reach, fmt="none", ecolor=BAR, elinewidth=1.4, zorder=2)
    colours = [_BEST if row.label in best else POINT for row in rows]
    panel.scatter(
        x, y, s=16 + 9 * np.log10(1 + weights), c=colours, edgecolor="white", linewidth=0.6, zorder=4
    )
    beside = max((x.max() / x.min()) ** 0.16, 1.15)
    panel.set_xlim(x.min() / beside, x.max() * beside)
    margin = 0.08 * (np.ptp(y) or 1.0)
    panel.set_ylim(low.min() - margin, high.max() + margin)
    lines = "95 % intervals" if group.judged else "deviation over seeds"
    marked = "; orange: the confidence set of the best" if best else ""
    note = f"larger points: more weights; lines: {lines}{marked}"
    heading = wrapped(group.title, _TITLE)
    frame(panel, heading, x=f"{_AXES[name]}\n{note}", y=group.ranked_by.label, pad=8)


def _numbers(group: Group, name: str, rows: Sequence[Row]) -> np.ndarray:
    """Return costs, means and the ends of their intervals, `(4, R)`."""
    ends_R2 = np.array([_interval(group, row) for row in rows])
    return np.array([[getattr(row.costs, name) for row in rows], [*map(group.mean, rows)], *ends_R2.T])


def _draw_names(panel: Axes, group: Group, name: str, rows: Sequence[Row], *, share: float) -> None:
    """Write the rows' names beside the panel, of whose height they take a share, joined to the points by lines."""
    x, y, *_ = _numbers(group, name, rows)
    low, high = panel.get_ylim()
    place_R = apart(y, share * (high - low) / len(rows))
    # within the panel's height as far as they fit
    place_R += max(0.0, low - place_R.min()) - max(0.0, place_R.max() - high)
    for label, point, place in zip(_names(rows), zip(x, y, strict=True), place_R, strict=True):
        panel.annotate(
            wrapped(label),
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
