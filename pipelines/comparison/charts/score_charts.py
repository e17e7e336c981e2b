"""Figures of a table: the scores of every column with their intervals, beside the cost of a training step.

A chart has a line for each row, a panel for each column, and one for the cost. A group is a chart of one column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator

from polypool.pipelines.comparison.groups import Group, Row, by_tuning
from polypool.pipelines.comparison.tables.cross_task import (
    Column,
    CrossTaskTable,
    cross_task_table,
    times_of_least,
)
from polypool.pipelines.comparison.tables.differences import two_digits
from polypool.pipelines.figures.style import BAR, INK, MUTED, POINT, frame, lines_of, new_figure, wrapped

_TITLE, _CAPTION, _HEADER = 70, 140, 16  # characters in a line; the last, above a narrow panel
_WIDTH, _PANEL, _ROW, _AROUND = (
    10.5,
    1.75,
    0.27,
    1.9,
)  # inches: of a figure, a narrow panel, a row, all around rows
_COSTS = {"step": "processor time of a training step", "weights": "weights of the aggregators"}
_TIMES = (1.2, 1.5, *(digit * 10.0**n for n in range(9) for digit in (1, 2, 5)))  # ticks of the cost
_GAP = 0.17  # the least space between two of them, as a share of the axis
_SHORTEST = 1.05  # the least end of the longest bar
_BESIDE = 1.45  # how many times as long as the longest bar the axis is, for the number beside it


@dataclass(frozen=True, kw_only=True)
class Chart:
    """What is drawn of a table.

    Attributes:
        columns: one panel each.
        times: by row, from the top, its cost as a multiple of the least.
        cost: of what, an attribute of `Costs`.
        ranks: by row, its mean rank over the columns; empty for one column.
    """

    columns: tuple[Column, ...]
    times: Mapping[str, float]
    cost: str
    ranks: Mapping[str, float]

    @property
    def caption(self) -> str:
        """What lines, points and bars mean, and how the rows were tuned."""
        intervals = sum(column.group.judged is not None for column in self.columns)
        known = [column for column in self.columns if column.confidence_set]
        lines = ["95 % intervals"] * (intervals > 0) + ["deviations over seeds"] * (
            intervals < len(self.columns)
        )
        parts = [f"lines: {', else '.join(lines)}"]
        if known:
            of = "of its column " * (len(self.columns) > 1)
            parts.append(f"filled: in the confidence set of the best {of}(95 %); hollow: not in it")
        if known and len(known) < len(self.columns):
            others = [" ".join(column.title[1:-1]) for column in self.columns if column not in known]
            parts.append(f"not judged, and hollow: {', '.join(others)}")
        over = ", geometric mean over columns" * (len(self.columns) > 1)
        cost = f"cost: {_COSTS[self.cost]}{over}, on a logarithmic axis"
        sentences = ("; ".join(parts), cost, self.columns[0].group.tuned)
        return "\n".join(wrapped(sentence, _CAPTION) for sentence in sentences if sentence)

    def label(self, name: str) -> str:
        """Return what is beside a row: its name, and its rank if it has one."""
        return wrapped(name) + (f"   {self.ranks[name]:.1f}" if self.ranks else "")


def group_chart(group: Group) -> Chart:
    """Return the chart of a group, in the order of its rows."""
    rows = dict(zip(_names(group.rows), group.rows, strict=True))
    column = Column(group=group, recipe="", model="", rows=rows)
    known = [name for name, row in rows.items() if row in group.known]
    return _chart([column], known, {})


def table_charts(groups: Sequence[Group]) -> Iterator[Chart]:
    """Yield the charts of groups: one of all columns where these make one table, else one of each group."""
    for of in by_tuning(groups):
        table = cross_task_table(of)
        yield from map(group_chart, of) if table is None else [_cross_chart(table)]


def _cross_chart(table: CrossTaskTable) -> Chart:
    """Return the chart of the columns that count, with the rows that all of these have, by their mean ranks."""
    ranks = dict(sorted(table.mean_ranks.items(), key=lambda pair: pair[1]))
    return _chart(table.counting, [*ranks], ranks)


def _names(rows: Sequence[Row]) -> list[str]:
    """Return the rows' aggregators where these tell them apart, without what was chosen for each; else their labels."""
    names = [row.aggregator or row.label for row in rows]
    return names if len({*names}) == len(names) else [row.label for row in rows]


def _chart(columns: Sequence[Column], names: Sequence[str], ranks: Mapping[str, float]) -> Chart:
    """Return a chart of the cost that most rows know, and of the rows that know it."""
    known = {cost: times_of_least(columns, names, cost) for cost in _COSTS}
    cost = max(known, key=lambda cost: len(known[cost]))
    return Chart(columns=tuple(columns), times=known[cost], cost=cost, ranks=ranks)


def draw_charts(charts: Iterable[Chart]) -> Figure | None:
    """Draw charts below each other, without those of fewer than two rows; None where there is none."""
    charts = [chart for chart in charts if len(chart.times) > 1]
    if not charts:
        return None
    heights = [_ROW * (1 + sum(map(lines_of, chart.times))) + _AROUND for chart in charts]
    width = max(_WIDTH, *(_PANEL * (len(chart.columns) + 2) for chart in charts))
    figure = new_figure(width, sum(heights))
    parts = figure.subfigures(len(charts), 1, squeeze=False, height_ratios=heights)[:, 0]
    for chart, part in zip(charts, parts, strict=True):
        draw_chart(chart, part)
    return figure


def draw_chart(chart: Chart, figure: Figure | SubFigure) -> tuple[list[Axes], Axes]:
    """Draw a chart, and return the panels of its columns and that of the cost."""
    count, places = len(chart.columns), range(len(chart.times))
    *scores, costs = figure.subplots(1, count + 1, width_ratios=[*[max(1.0, 3 / count)] * count, 1.0])
    for column, panel in zip(chart.columns, scores, strict=True):
        _draw_scores(column, [*chart.times], panel, narrow=count > 1)
    _draw_costs(chart, costs)
    for panel in (*scores, costs):
        panel.set_yticks(places, [""] * len(places))
        panel.set_ylim(len(places) - 0.4, -0.6)
    scores[0].set_yticks(places, [chart.label(name) for name in chart.times])
    if chart.ranks:
        corner: dict[str, Any] = {
            "xytext": (-4, 4),
            "textcoords": "offset points",
            "xycoords": "axes fraction",
            "ha": "right",
        }
        scores[0].annotate("mean rank", (0, 1), color=MUTED, fontsize=9, **corner)
    figure.supxlabel(chart.caption, x=0.01, ha="left", fontsize=9, color=MUTED)
    return scores, costs


def _draw_scores(column: Column, names: Sequence[str], panel: Axes, *, narrow: bool) -> None:
    """Draw a point with an interval for each row; those that may be the best of the column are filled."""
    group, places, best = column.group, range(len(names)), column.confidence_set
    mean_R = np.array([column.value(name) for name in names])
    low_R, high_R = np.array([group.interval(column.rows[name]) for name in names]).T
    # a mean may be beyond an end by its last digit
    reach_2R = np.maximum((mean_R - low_R, high_R - mean_R), 0.0)
    faces = [POINT if name in best else "white" for name in names]
    panel.errorbar(mean_R, places, xerr=reach_2R, fmt="none", ecolor=BAR, elinewidth=2.2, zorder=2)
    panel.scatter(mean_R, places, s=34, c=faces, edgecolor=POINT, linewidth=1.4, zorder=4)
    panel.margins(x=0.08)
    heading = wrapped(replace(group, tuned="").title, _TITLE)
    if narrow:
        heading = "\n".join(wrapped(line, _HEADER) for line in column.title[:-1])
        panel.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10], min_n_ticks=3))
        panel.tick_params(axis="x", labelsize=9)
    frame(panel, heading, x=group.metric.label, pad=8, spines=("bottom",))


def _draw_costs(chart: Chart, panel: Axes) -> None:
    """Draw a bar for the cost of each row, from the least on, on a logarithmic axis."""
    time_R = np.array([*chart.times.values()])
    panel.set_xscale("log")
    panel.barh(range(len(time_R)), time_R - 1, left=1, height=0.5, color=BAR, zorder=2)
    for place, time in enumerate(time_R):
        note = f"{time:.2f}" if time < 10 else two_digits(time)
        beside: dict[str, Any] = {
            "xytext": (4, 0),
            "textcoords": "offset points",
            "va": "center",
            "fontsize": 8.5,
        }
        panel.annotate(note, (time, place), color=INK, **beside)
    end = max(time_R.max(), _SHORTEST) ** _BESIDE
    ticks = [1.0]
    for time in _TIMES:
        if time <= end and np.log(time / ticks[-1]) >= _GAP * np.log(end):
            ticks.append(time)
    panel.set_xlim(1, end)
    panel.set_xticks(ticks, [f"{time:,g}" for time in ticks])
    panel.set_xticks([], minor=True)
    what = {"step": "cost of a step", "weights": "weights"}[chart.cost]
    frame(panel, "", x=f"{what},\ntimes the least", pad=8, grid="x", spines=("bottom",))
