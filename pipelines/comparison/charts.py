"""Figures of a comparison: bars with runs, scores next to costs, task x aggregator, mean ranks.

- `draw_bars`: a bar for each row with a point for each run.
- `draw_charts`: a line for each row, a panel for each column with scores and their intervals, and one for the cost of a
  training step. A group is a chart of one column.
- `draw_cross_task`, `draw_pairs`: heat maps, shaded from the worst to the best.
- `draw_critical`: mean ranks; bars join aggregators that do not differ significantly. Two aggregators differ at the
  level 0.05 if their mean ranks over N tasks are at least CD = q sqrt(k (k + 1) / 6 N) apart; q is the studentised
  range of k and infinitely many degrees of freedom, over the square root of 2 (Demsar, "Statistical comparisons of
  classifiers over multiple data sets", JMLR 7, 2006, section 3.2.2, figure 1).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator

from polypool.infra.text_tables import ABSENT, decimals
from polypool.pipelines.comparison.cross_task import Column, CrossTaskTable, cross_task_table, times_of_least
from polypool.pipelines.comparison.rows import Group, Row, by_tuning
from polypool.pipelines.comparison.tables import two_digits
from polypool.pipelines.figures.style import (
    BAR,
    INK,
    MUTED,
    POINT,
    bare,
    frame,
    lines_of,
    new_figure,
    save,
    stacked,
    title,
    wrapped,
)
from polypool.tasks.adapter import Metric
from polypool.tasks.run import Run

# characters in a line: of a title, of a caption, above a narrow panel, of the name of one of a pair
_TITLE, _CAPTION, _HEADER, _PAIR = 70, 140, 16, 18
# inches: of a figure, a narrow panel, a row, all around rows
_WIDTH, _PANEL, _ROW, _AROUND = 10.5, 1.75, 0.27, 1.9
_COSTS = {"step": "processor time of a training step", "weights": "weights of the aggregators"}
_TIMES = (1.2, 1.5, *(digit * 10.0**n for n in range(9) for digit in (1, 2, 5)))  # ticks of the cost
_GAP = 0.17  # the least space between two of them, as a share of the axis
_AT_THE_MIDDLE: dict[str, Any] = {"textcoords": "offset points", "va": "center"}


def draw_all(groups: Sequence[Group], cross_tasks: Sequence[CrossTaskTable], folder: Path) -> list[Path]:
    """Draw every figure with data, and return their files."""
    figures = {
        "compare": draw_bars(groups),
        "costs": draw_charts(map(group_chart, groups)),
    }
    for number, cross_task in enumerate(cross_tasks, start=1):
        after = f"_{number}" * (number > 1)
        figures[f"heat_map{after}"] = draw_cross_task(cross_task)
        if cross_task.has_diagram:
            tasks = len(cross_task.counting)
            figures[f"critical_difference{after}"] = draw_critical(cross_task.mean_ranks, tasks=tasks)
    paths = []
    for name, figure in figures.items():
        if figure is not None:
            paths.append(folder / f"{name}.png")
            save(figure, paths[-1])
    return paths


def draw_bars(groups: Sequence[Group]) -> Figure | None:
    """Draw a panel for each group: a bar for each row, the best on top, and a point for each run; None without groups.

    Bars are means over runs, lines their sample standard deviations.
    """
    if not groups:
        return None
    figure, panels = stacked(8.5, [0.42 * (sum(map(_height, group.rows)) + 0.3) for group in groups])
    for group, panel in zip(groups, panels, strict=True):
        _draw_panel(group, panel)
    return figure


def _draw_panel(group: Group, panel: Axes) -> None:
    metric, y_R, bottom = group.metric, [], 0.0
    for row in group.rows:
        y_R.append(bottom + _height(row) / 2)
        bottom += _height(row)
    panel.barh(y_R, [group.mean(row) for row in group.rows], height=0.62, color=BAR, zorder=2)
    for y, row in zip(y_R, group.rows, strict=True):
        if not (values := row.values.get(metric.name, ())):
            continue
        mean, deviation = group.mean(row), group.deviation(row)
        note, end = group.number(mean), max(values)
        if not math.isnan(deviation):
            note, end = f"{note} ± {group.number(deviation)}", max(end, mean + deviation)
            line: dict[str, Any] = {"fmt": "none", "ecolor": INK, "capsize": 4, "elinewidth": 1.3}
            panel.errorbar(mean, y, xerr=deviation, zorder=3, **line)
        shift = 0.16 if len(values) > 1 else 0.0  # so that near points, and the line, stay visible
        apart = [y + shift * (-1) ** at for at in range(len(values))]
        panel.scatter(values, apart, s=18, color=POINT, edgecolor="white", linewidth=0.6, zorder=4)
        clear = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}  # over the line of chance
        panel.annotate(note, (end, y), (8, 0), color=INK, zorder=6, fontsize=9, bbox=clear, **_AT_THE_MIDDLE)
    if not math.isnan(metric.chance):
        panel.axvline(metric.chance, color=MUTED, linestyle=(0, (2, 2)), linewidth=1, zorder=5)
        above = panel.get_xaxis_transform()
        panel.text(metric.chance, 1.01, " chance", transform=above, color=MUTED, fontsize=8)
    panel.set_yticks(y_R, [wrapped(row.label) for row in group.rows])
    panel.set_ylim(bottom + 0.15, -0.15)
    panel.margins(x=0.16)
    if all(value >= 0 for row in group.rows for value in row.values.get(metric.name, ())):
        panel.set_xlim(left=0)
    frame(panel, group.title, x=metric.label, grid="x", spines=("left",))


def _height(row: Row) -> float:
    """Return the height of a bar, larger for labels of several lines."""
    return max(1.0, 0.42 * lines_of(row.label))


@dataclass(frozen=True, kw_only=True)
class Chart:
    """The content of a figure of a table.

    Attributes:
        columns: one panel each.
        times: cost of each row, from the top, as a multiple of the least.
        cost: its kind, `step` or `weights`.
        ranks: mean rank of each row over the columns; empty for one column.
    """

    columns: tuple[Column, ...]
    times: Mapping[str, float]
    cost: str
    ranks: Mapping[str, float]

    @property
    def caption(self) -> str:
        """Meaning of lines, points and bars, and the tuning of the rows."""
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


def group_chart(group: Group) -> Chart:
    """Return the chart of a group, in the order of its rows.

    Rows are named by their aggregators without tuned settings if these are distinct, else by their labels.
    """
    names = [row.aggregator or row.label for row in group.rows]
    names = names if len({*names}) == len(names) else [row.label for row in group.rows]
    rows = dict(zip(names, group.rows, strict=True))
    known = [name for name, row in rows.items() if row in group.known]
    return _chart([Column(group=group, rows=rows)], known, {})


def table_charts(groups: Sequence[Group]) -> Iterator[Chart]:
    """Yield one chart for the groups of each tuning if they form a table of several columns, else one for each group.

    The chart of a table shows the counting columns and the rows that all of them have, by mean rank.
    """
    for of in by_tuning(groups):
        if (table := cross_task_table(of)) is None:
            yield from map(group_chart, of)
        else:
            ranks = dict(sorted(table.mean_ranks.items(), key=lambda pair: pair[1]))
            yield _chart(table.counting, [*ranks], ranks)


def _chart(columns: Sequence[Column], names: Sequence[str], ranks: Mapping[str, float]) -> Chart:
    """Return a chart of the cost that is known for most rows, and of these rows."""
    known = {cost: times_of_least(columns, names, cost) for cost in _COSTS}
    cost = max(known, key=lambda cost: len(known[cost]))
    return Chart(columns=tuple(columns), times=known[cost], cost=cost, ranks=ranks)


def draw_charts(charts: Iterable[Chart]) -> Figure | None:
    """Draw charts below each other, skipping charts of fewer than two rows; None if no chart is left."""
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
    """Draw a chart, and return the panels of its columns and the panel of the cost."""
    count, y_R = len(chart.columns), range(len(chart.times))
    *scores, costs = figure.subplots(1, count + 1, width_ratios=[*[max(1.0, 3 / count)] * count, 1.0])
    for column, panel in zip(chart.columns, scores, strict=True):
        _draw_scores(column, [*chart.times], panel, narrow=count > 1)
    _draw_costs(chart, costs)
    for panel in (*scores, costs):
        panel.set_yticks(y_R, [""] * len(y_R))
        panel.set_ylim(len(y_R) - 0.4, -0.6)
    after = {name: f"   {rank:.1f}" for name, rank in chart.ranks.items()}
    scores[0].set_yticks(y_R, [wrapped(name) + after.get(name, "") for name in chart.times])
    if after:
        corner: dict[str, Any] = {"textcoords": "offset points", "xycoords": "axes fraction", "ha": "right"}
        scores[0].annotate("mean rank", (0, 1), (-4, 4), color=MUTED, fontsize=9, **corner)
    figure.supxlabel(chart.caption, x=0.01, ha="left", fontsize=9, color=MUTED)
    return scores, costs


def _draw_scores(column: Column, names: Sequence[str], panel: Axes, *, narrow: bool) -> None:
    """Draw a point with an interval for each row, filled if the row may be the best of the column."""
    group, y_R, best = column.group, range(len(names)), column.confidence_set
    mean_R = np.array([column.value(name) for name in names])
    low_R, high_R = np.array([group.interval(column.rows[name]) for name in names]).T
    # a mean may be beyond an end by its last digit
    reach_2R = np.maximum((mean_R - low_R, high_R - mean_R), 0.0)
    faces = [POINT if name in best else "white" for name in names]
    panel.errorbar(mean_R, y_R, xerr=reach_2R, fmt="none", ecolor=BAR, elinewidth=2.2, zorder=2)
    panel.scatter(mean_R, y_R, s=34, c=faces, edgecolor=POINT, linewidth=1.4, zorder=4)
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
    for y, time in enumerate(time_R):
        note = f"{time:.2f}" if time < 10 else two_digits(time)
        panel.annotate(note, (time, y), (4, 0), color=INK, fontsize=8.5, **_AT_THE_MIDDLE)
    end = max(time_R.max(), 1.05) ** 1.45  # the longest bar has a length, and its number room beside it
    ticks = [1.0]
    for time in _TIMES:
        if time <= end and np.log(time / ticks[-1]) >= _GAP * np.log(end):
            ticks.append(time)
    panel.set_xlim(1, end)
    panel.set_xticks(ticks, [f"{time:,g}" for time in ticks])
    panel.set_xticks([], minor=True)
    what = {"step": "cost of a step", "weights": "weights"}[chart.cost]
    frame(panel, "", x=f"{what},\ntimes the least", pad=8, grid="x", spines=("bottom",))


def draw_cross_task(cross_task: CrossTaskTable) -> Figure:
    """Draw task x aggregator, shaded by chance-normalised scores: the palest are not above chance."""
    names, columns = cross_task.aggregators, cross_task.columns
    above = ["\n".join(wrapped(line, _HEADER) for line in column.title) for column in columns]
    values = [np.array([column.value(name) for name in names]) for column in columns]
    shades = [column.group.metric.shade(value) for column, value in zip(columns, values, strict=True)]
    row = 0.3 * max(1.0, 0.62 * max(map(lines_of, names)))
    header = 0.17 * max(text.count("\n") + 1 for text in above)
    heading = "primary metric (in brackets and as shade: chance-normalised)"
    heading += f"\n{cross_task.tuned}" * bool(cross_task.tuned)
    figure = new_figure(
        max(6.2, 3.4 + 1.35 * len(columns)), row * len(names) + header + 0.9, heading, size=11
    )
    panel = figure.subplots()
    notes = [[_cell(column, name) for column in columns] for name in names]
    _draw_cells(panel, np.stack(shades, axis=1), notes, rows=[*map(wrapped, names)], columns=above, size=8.5)
    panel.xaxis.tick_top()
    return figure


def _cell(column: Column, aggregator: str) -> str:
    value, score = column.value(aggregator), column.chance_normalised(aggregator)
    if math.isnan(value):
        return ABSENT
    return column.group.number(value) + ("" if math.isnan(score) else f"  ({score:.1f})")


def draw_pairs(scored: Sequence[tuple[Run, Mapping[str, float]]], *, metric: Metric) -> Figure | None:
    """Draw the K x K table of figure 6 of VSE-infinity: means over seeds by visual and text aggregator.

    Args:
        scored: all runs of one recipe, in the order of their sweep, with their metrics, empty for unfinished runs.
        metric: the primary metric of the recipe's task.

    Returns:
        None if no run has finished.
    """
    run, name = scored[0][0], f"{scored[0][0].protocol}/{metric.name}"
    values = pd.DataFrame(
        [(of.aggregator, of.text_aggregator or of.aggregator, logged.get(name)) for of, logged in scored],
        columns=["visual", "text", "value"],
    ).astype({"value": float})
    pairs = values.groupby(["visual", "text"], sort=False)["value"]
    counts = pairs.count().loc[lambda count: count > 0]
    if counts.empty:
        return None
    visual, text = values["visual"].unique(), values["text"].unique()
    mean_VT = pairs.mean().unstack().loc[visual, text].to_numpy()
    figure = new_figure(max(5.0, 2.6 + 1.15 * len(text)), max(2.6, 1.5 + 0.55 * len(visual)))
    panel = figure.subplots()
    digits = decimals(float(np.nanmax(np.abs([*mean_VT.flat, metric.best]))))
    notes = [[ABSENT if math.isnan(x) else f"{x:.{digits}f}" for x in row_T] for row_T in mean_VT]
    rows, columns = ([wrapped(name, _PAIR) for name in names] for names in (visual, text))
    _draw_cells(panel, metric.shade(mean_VT), notes, rows=rows, columns=columns)
    panel.set_xlabel("text aggregator", fontsize=9, color=INK)
    panel.set_ylabel("visual aggregator", fontsize=9, color=INK)
    few, many = counts.min(), counts.max()
    over = "one run each" if many == 1 else f"mean over {few if few == many else f'{few} to {many}'} seeds"
    title(panel, f"{run.label} · {run.protocol} · {metric.label}\n{over}", pad=8)
    return figure


def _draw_cells(
    panel: Axes,
    shade_RC: np.ndarray,
    notes: Sequence[Sequence[str]],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    size: float = 9,
) -> None:
    """Draw the cells of a heat map.

    Args:
        panel: where.
        shade_RC: of each cell, from 0 for the worst to 1 for the best; NaN for an empty cell.
        notes: text of each cell, by rows.
        rows, columns: their labels.
        size: points of the notes and of the columns' labels.
    """
    panel.imshow(np.ma.masked_invalid(shade_RC), cmap="Blues", vmin=-0.15, vmax=1.25, aspect="auto")
    for (r, c), shade in np.ndenumerate(shade_RC):
        colour = "white" if shade > 0.62 else INK
        panel.text(c, r, notes[r][c], ha="center", va="center", fontsize=size, color=colour)
    panel.set_xticks(range(len(columns)), columns, fontsize=size)
    panel.set_yticks(range(len(rows)), rows, fontsize=9)
    bare(panel)


def critical_difference(aggregators: int, tasks: int) -> float:
    """Return the difference of mean ranks that chance exceeds with a probability of 0.05 (Nemenyi)."""
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(0.95, aggregators, math.inf)) / math.sqrt(2)
    return q * math.sqrt(aggregators * (aggregators + 1) / (6 * tasks))


def cliques(rank_A: np.ndarray, difference: float) -> list[tuple[int, int]]:
    """Return the longest runs of ascending ranks that differ by at most a difference, as first and last index."""
    runs: list[tuple[int, int]] = []
    for first, rank in enumerate(rank_A):
        last = int(np.searchsorted(rank_A, rank + difference)) - 1
        if last > first and (not runs or last > runs[-1][1]):
            runs.append((first, last))
    return runs


def draw_critical(mean_ranks: Mapping[str, float], *, tasks: int) -> Figure:
    """Draw the diagram, a row for each aggregator, the best on top.

    Args:
        mean_ranks: by aggregator.
        tasks: number of tasks in the means.
    """
    ranks = dict(sorted(mean_ranks.items(), key=lambda pair: (pair[1], pair[0])))
    difference, y_R = critical_difference(len(ranks), tasks), range(len(ranks))
    figure, (panel,) = stacked(8.5, [_ROW * sum(map(lines_of, ranks))])
    panel.scatter([*ranks.values()], y_R, s=34, color=POINT, zorder=4)
    for y, rank in enumerate(ranks.values()):
        panel.annotate(f"{rank:.2f}", (rank, y), (8, 0), color=INK, fontsize=8.5, **_AT_THE_MIDDLE)
    joined = cliques(np.array([*ranks.values()]), difference)
    for number, (first, last) in enumerate(joined):
        x, ends = 0.86 + 0.13 * number / len(joined), [first - 0.3, last + 0.3]  # x: of the panel's width
        panel.plot([x, x], ends, color=POINT, linewidth=3.2, transform=panel.get_yaxis_transform())
    panel.set_yticks(y_R, [*map(wrapped, ranks)])
    panel.set_ylim(len(ranks) - 0.4, -0.6)
    panel.set_xlim(0.9, 1.3 * max(ranks.values()))
    what = f"mean rank over {tasks} tasks; bars join what does not differ"
    heading = f"{what}\n(Nemenyi, 0.05: CD {difference:.2f})"
    frame(panel, heading, x="mean rank", grid="x", spines=("bottom",))
    return figure
