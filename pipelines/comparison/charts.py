"""Figures of a comparison: bars with runs, lags behind the best, task x aggregator.

- `draw_bars`: a bar for each row with a point for each run.
- `draw_lags`: a row for each aggregator, a panel for each column with the difference from the best of the others, its
  simultaneous interval, which ends at 0 for rows that are ruled out (Hsu, Annals of Statistics 12, 1984), and a dot for
  each seed, shaded by p of being the best.
- `draw_against`: the means of each aggregator in two tables, such as untuned and tuned.
- `draw_cross_task`, `draw_pairs`: heat maps, shaded from the worst to the best.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from polypool.infra.text_tables import ABSENT, decimals
from polypool.pipelines.comparison.cross_task import Column, CrossTaskTable
from polypool.pipelines.comparison.rows import Group, Row
from polypool.pipelines.comparison.tables import with_sign
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
    title,
    wrapped,
)
from polypool.tasks.adapter import Metric
from polypool.tasks.run import Run

# characters per line: per inch of a caption, in a heading above a narrow panel, in an axis label of `draw_pairs`
_CAPTION, _HEADER, _PAIR = 15, 16, 18
# inches: width of a panel, height of a row, height of everything else, width of the names
_PANEL, _ROW, _AROUND, _NAMES = 1.95, 0.29, 1.75, 2.2
_SHADES = LinearSegmentedColormap.from_list("p", ["#d5dce4", "#8fb3d4", POINT])
_P = PowerNorm(0.5, vmin=0, vmax=1)
_TICKS: dict[str, Any] = {"nbins": 4, "steps": [1, 2, 5, 10], "min_n_ticks": 3}
_AT_THE_MIDDLE: dict[str, Any] = {"textcoords": "offset points", "va": "center"}


def draw_all(groups: Sequence[Group], tables: Sequence[CrossTaskTable], folder: Path) -> list[Path]:
    """Draw every figure of groups and of their tables, if it has data, and return the files."""
    figures = {"compare": draw_bars(groups)}
    for number, table in enumerate(tables, start=1):
        figures["lags" + f"_{number}" * (number > 1)] = draw_lags(table)
    for number, table in enumerate((of for of in tables if len(of.columns) > 1), start=1):
        figures["heat_map" + f"_{number}" * (number > 1)] = draw_cross_task(table)
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
    heights = [0.42 * (sum(map(_height, group.rows)) + 0.3) for group in groups]  # inches
    figure = new_figure(8.5, sum(heights) + 1.1 * len(heights))
    panels = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
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
            panel.errorbar(
                mean, y, xerr=deviation, fmt="none", ecolor=INK, capsize=4, elinewidth=1.3, zorder=3
            )
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


def draw_lags(table: CrossTaskTable) -> Figure | None:
    """Draw how far aggregators are behind the best of the others, in the order of the table.

    The first row is the table's baseline, if it has one. Rows that a column lacks are empty there.

    Returns:
        None if no column has two aggregators; a column with one is left out.
    """
    columns = [column for column in table.columns if len(_known(column, table.aggregators)) > 1]
    names = [name for name in table.aggregators if any(_known(column, [name]) for column in columns)]
    if not columns:
        return None
    figure = new_figure(_NAMES + _PANEL * max(len(columns), 2), _ROW * sum(map(lines_of, names)) + _AROUND)
    panels = figure.subplots(1, len(columns), squeeze=False, sharey=True)[0]
    for column, panel in zip(columns, panels, strict=True):
        _draw_lags(column, names, panel)
    y_R = range(len(names))
    ranks = {name: f"   {low}\u2013{high}" for name, (low, high) in table.ranks.items()}
    panels[0].set_yticks(y_R, [wrapped(name) + ranks.get(name, "") for name in names])
    panels[0].set_ylim(len(names) - 0.5, -0.5)
    if ranks:
        panels[0].annotate(
            "rank",
            (0, 1),
            (-4, 4),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="right",
            color=MUTED,
            fontsize=9,
        )
    if any(column.from_best for column in columns):
        shades = ScalarMappable(norm=_P, cmap=_SHADES)
        bar = figure.colorbar(shades, ax=panels, fraction=0.012, pad=0.01, ticks=[0, 0.05, 0.2, 0.5, 1])
        bar.ax.set_yticklabels(["0", ".05", ".2", ".5", "1"], fontsize=8.5, color=INK)
        bar.ax.set_title("p best", fontsize=9, color=MUTED, pad=6)
        bar.ax.tick_params(length=0)
        bar.outline.set_visible(False)
    text = (
        "difference from the best of the others; line: simultaneous 95 % interval, which ends at 0 for rows that are "
        "ruled out as the best of their panel; tick: mean; dot: a seed; p: of being the best"
    )
    line = int(_CAPTION * figure.get_figwidth())
    caption = "\n".join(wrapped(part, line) for part in (text, table.tuned) if part)
    figure.supxlabel(caption, x=0.01, ha="left", fontsize=9, color=MUTED)
    return figure


def _known(column: Column, names: Sequence[str]) -> dict[int, Row]:
    """Return the rows with a score by their position."""
    return {y: column.rows[name] for y, name in enumerate(names) if not math.isnan(column.value(name))}


def _draw_lags(column: Column, names: Sequence[str], panel: Axes) -> None:
    """Draw the rows of a column; rows far behind all others are a number at the edge."""
    group, metric = column.group, column.group.metric
    known = _known(column, names)
    lags = {}
    for y, row in known.items():
        others = [metric.sign * group.mean(other) for other in known.values() if other is not row]
        of = column.from_best.get(row.label)
        value = of.value if of else group.mean(row) - metric.sign * max(others)
        ends = (of.low, of.high) if of else (value, value)
        lags[y] = value, ends, _SHADES(_P(of.p)) if of else BAR
    lowest = sorted(metric.sign * (ends[0] if metric.sign > 0 else ends[1]) for _, ends, _ in lags.values())
    while len(lowest) > 3 and lowest[0] < 2 * lowest[1]:
        lowest = lowest[1:]
    left = 1.08 * min([0.0, *lowest[:1]])
    right = max(metric.sign * end for _, ends, _ in lags.values() for end in ends)
    for y, (value, ends, shade) in lags.items():
        if metric.sign * value < left:
            text = f"\u25c2 {with_sign(value, group.decimals(metric.name))}"
            panel.annotate(text, (metric.sign * left, y), (4, 0), color=MUTED, fontsize=8.5, **_AT_THE_MIDDLE)
            continue
        panel.plot(ends, (y, y), color=shade, linewidth=4, solid_capstyle="butt", zorder=2)
        seeds = [x - group.mean(known[y]) + value for x in known[y].values.get(metric.name, ())]
        panel.scatter(seeds, [y] * len(seeds), s=13, color="white", edgecolor=INK, linewidth=0.7, zorder=4)
        panel.plot((value, value), (y - 0.28, y + 0.28), color=INK, linewidth=1.6, zorder=3)
    panel.axvline(0.0, color=MUTED, linewidth=1, zorder=1)
    room = 0.06 * (right - left) or 1.0
    panel.set_xlim(*sorted((metric.sign * (left - room), metric.sign * (right + room)))[:: metric.sign])
    panel.xaxis.set_major_locator(MaxNLocator(**_TICKS))
    panel.tick_params(axis="x", labelsize=9)
    heading = "\n".join(wrapped(line, _HEADER) for line in column.title[:-1])
    frame(panel, heading, x=metric.label, pad=8, spines=("bottom",))


def draw_against(groups: Sequence[Group], others: Sequence[Group]) -> Figure | None:
    """Draw the means of aggregators in one table (filled) and in another (hollow), such as tuned and untuned.

    A panel for each column of both, rows in the order of the first table; lines are sample standard deviations over
    seeds. The heading has Spearman's rank correlation of the two.

    Returns:
        None if no column has two aggregators in both tables.
    """
    pairs = [
        (group, other, known)
        for group in groups
        for other in others
        if (group.task, group.dataset, group.protocol) == (other.task, other.dataset, other.protocol)
        and len(known := _shared(group, other)) > 1
    ]
    if not pairs:
        return None
    most = max(len(known) for _, _, known in pairs)
    figure = new_figure(max(6.4, 3.3 * len(pairs)), 0.2 * most + 1.2)
    for (group, other, known), panel in zip(
        pairs, figure.subplots(1, len(pairs), squeeze=False)[0], strict=True
    ):
        _draw_against(group, other, known, panel)
    return figure


def _shared(group: Group, other: Group) -> dict[str, tuple[Row, Row]]:
    """Return the best row of each group for each visual aggregator that both have, whatever its options."""
    first, second = {}, {}
    for rows, of in ((first, group), (second, other)):
        for row in of.known:  # the best first
            rows.setdefault(re.split(r", text | ?\(", row.aggregator)[0], row)
    return {name: (row, second[name]) for name, row in first.items() if name and name in second}


def _draw_against(group: Group, other: Group, known: Mapping[str, tuple[Row, Row]], panel: Axes) -> None:
    metric, y_R = group.metric, range(len(known))
    means = []
    for at, (of, face) in enumerate(((group, POINT), (other, "white"))):
        rows = [pair[at] for pair in known.values()]
        means.append([*map(of.mean, rows)])
        deviations = np.nan_to_num([*map(of.deviation, rows)])
        panel.errorbar(
            means[at],
            y_R,
            xerr=deviations,
            fmt="o",
            markersize=5,
            markerfacecolor=face,
            color=POINT,
            ecolor=MUTED,
            elinewidth=1,
            zorder=4 - at,
        )
    panel.hlines(y_R, means[0], means[1], color=BAR, linewidth=4, zorder=1)
    panel.set_yticks(y_R, [*known], fontsize=9)
    panel.set_ylim(len(known) - 0.5, -0.5)
    panel.xaxis.set_major_locator(MaxNLocator(**_TICKS))
    correlation = pd.Series(means[0]).corr(pd.Series(means[1]), method="spearman")
    heading = f"{group.dataset} · rank correlation {correlation:.2f}"
    frame(panel, heading, x=metric.label, pad=8, grid="x", spines=("bottom",))


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
        None if no run has finished, or if there is one text aggregator.
    """
    run, name = scored[0][0], f"{scored[0][0].protocol}/{metric.name}"
    values = pd.DataFrame(
        [(of.aggregator, of.text_aggregator or of.aggregator, logged.get(name)) for of, logged in scored],
        columns=["visual", "text", "value"],
    ).astype({"value": float})
    pairs = values.groupby(["visual", "text"], sort=False)["value"]
    counts = pairs.count().loc[lambda count: count > 0]
    visual, text = values["visual"].unique(), values["text"].unique()
    if counts.empty or len(text) < 2:
        return None
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
        panel: axes to draw in.
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
