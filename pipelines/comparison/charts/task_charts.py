"""Figures of task x aggregator: heat maps, whose shades run from the worst to the best, and mean ranks.

The critical-difference diagram joins by bars the mean ranks that do not differ significantly. Two aggregators differ at
the level 0.05 where their mean ranks over N tasks are at least CD = q sqrt(k (k + 1) / 6 N) apart; q is the studentised
range of k and infinitely many degrees of freedom, over the square root of 2.

Source: Demsar, "Statistical comparisons of classifiers over multiple data sets", JMLR 7, 2006, section 3.2.2, figure 1.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from polypool.infra.text_tables import ABSENT, decimals
from polypool.pipelines.comparison.tables.cross_task import Column, CrossTaskTable
from polypool.pipelines.figures.style import INK, MUTED, POINT, bare, lines_of, new_figure, title, wrapped
from polypool.tasks.adapter import Metric
from polypool.tasks.run import Run

_HEADER, _PAIR, _RANKED = (
    16,
    18,
    30,
)  # characters of a line above a column, of the name of one of a pair, of a rank
_LINE = 0.19  # inches of a line beside the axis of ranks


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
    notes = [[_note(column, name) for column in columns] for name in names]
    _draw_cells(panel, np.stack(shades, axis=1), notes, rows=[*map(wrapped, names)], columns=above, size=8.5)
    panel.xaxis.tick_top()
    return figure


def _note(column: Column, aggregator: str) -> str:
    value, score = column.value(aggregator), column.chance_normalised(aggregator)
    if math.isnan(value):
        return ABSENT
    return column.group.number(value) + ("" if math.isnan(score) else f"  ({score:.1f})")


def draw_pairs(scored: Sequence[tuple[Run, Mapping[str, float]]], *, metric: Metric) -> Figure | None:
    """Draw the K x K table of figure 6 of VSE-infinity: means over seeds by visual and text aggregator.

    Args:
        scored: all runs of one recipe, in the order of their sweep, with their metrics, empty for unfinished ones.
        metric: the primary one of the recipe's task.

    Returns:
        None where no run has finished.
    """
    run, name = scored[0][0], f"{scored[0][0].protocol}/{metric.name}"
    reached: dict[tuple[str, str], list[float]] = {}
    for of, metrics in scored:
        values = reached.setdefault((of.aggregator, of.text_aggregator or of.aggregator), [])
        if name in metrics:
            values.append(metrics[name])
    counts = [len(values) for values in reached.values() if values]
    if not counts:
        return None
    visual, text = (tuple(dict.fromkeys(side)) for side in zip(*reached, strict=True))
    mean_VT = np.array([[statistics.fmean(reached.get((v, t)) or [math.nan]) for t in text] for v in visual])
    figure = new_figure(max(5.0, 2.6 + 1.15 * len(text)), max(2.6, 1.5 + 0.55 * len(visual)))
    panel = figure.subplots()
    digits = decimals(float(np.nanmax(np.abs([*mean_VT.flat, metric.best]))))
    notes = [[ABSENT if math.isnan(x) else f"{x:.{digits}f}" for x in row_T] for row_T in mean_VT]
    rows, columns = ([wrapped(name, _PAIR) for name in names] for names in (visual, text))
    _draw_cells(panel, metric.shade(mean_VT), notes, rows=rows, columns=columns)
    panel.set_xlabel("text aggregator", fontsize=9, color=INK)
    panel.set_ylabel("visual aggregator", fontsize=9, color=INK)
    few, many = min(counts), max(counts)
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
        shade_RC: of each cell 0 for the worst and 1 for the best; NaN for none.
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
    """Return the longest runs of ascending ranks that differ by at most a difference, as first and last place."""
    runs: list[tuple[int, int]] = []
    for first, rank in enumerate(rank_A):
        last = int(np.searchsorted(rank_A, rank + difference)) - 1
        if last > first and (not runs or last > runs[-1][1]):
            runs.append((first, last))
    return runs


def draw_critical(mean_ranks: Mapping[str, float], *, tasks: int) -> Figure:
    """Draw the diagram, the best rank on the left.

    Args:
        mean_ranks: by aggregator.
        tasks: how many the means are over.
    """
    ranks = dict(sorted(mean_ranks.items(), key=lambda pair: (pair[1], pair[0])))
    difference = critical_difference(len(ranks), tasks)
    joined = cliques(np.array([*ranks.values()]), difference)
    names, half = [*ranks], (len(ranks) + 1) // 2
    # the worst rank of the right half stands highest there, so that its lines do not cross
    left, right = names[:half], names[half:][::-1]
    top = 0.9 + 0.1 * len(joined)
    height = top + max(sum(map(_room, side)) for side in (left, right)) + 0.35
    figure = new_figure(10.5, height)
    panel = figure.subplots()
    panel.set_xlim(0, 10.5)
    panel.set_ylim(height - 0.3, 0)
    panel.axis("off")
    title(panel, f"mean rank over {tasks} tasks; bars join what does not differ (Nemenyi, 0.05)", pad=6)
    scale = _axis(panel, len(ranks), difference)
    for number, (first, last) in enumerate(joined):
        ends = [scale(ranks[names[first]]) - 0.05, scale(ranks[names[last]]) + 0.05]
        panel.plot(ends, [0.78 + 0.1 * number] * 2, color=POINT, linewidth=3.2, solid_capstyle="butt")
    for side, x, align in ((left, 2.75, "right"), (right, 7.75, "left")):
        y = top
        for name in side:
            y += _room(name) / 2
            at = scale(ranks[name])
            panel.plot([at, at, x], [0.6, y, y], color=MUTED, linewidth=0.9)
            way = -1 if align == "right" else 1
            place: dict[str, Any] = {"ha": align, "va": "center"}
            panel.text(x + 0.05 * way, y, f"{ranks[name]:.2f}", fontsize=8, color=MUTED, **place)
            panel.text(x + 0.5 * way, y, wrapped(name, _RANKED), fontsize=9, color=INK, **place)
            y += _room(name) / 2
    return figure


def _room(name: str) -> float:
    return _LINE * lines_of(name, _RANKED) + 0.08


def _axis(panel: Axes, count: int, difference: float) -> Callable[[float], float]:
    """Draw the axis of ranks and the critical difference above it; return the position of a rank."""
    low, high = 2.9, 7.6

    def scale(rank: float) -> float:
        return low + (high - low) * (rank - 1) / (count - 1)

    panel.plot([low, high], [0.6, 0.6], color=INK, linewidth=1.2)
    step = max(1, round(count / 10))
    for rank in {*range(1, count + 1, step), count} - ({count - 1} if step > 1 else set()):
        panel.plot([scale(rank)] * 2, [0.54, 0.6], color=INK, linewidth=1.2)
        panel.text(scale(rank), 0.48, f"{rank}", ha="center", va="bottom", fontsize=8.5, color=INK)
    end = min(scale(1 + difference), high)
    panel.plot([low, end], [0.18, 0.18], color=INK, linewidth=1.2)
    for x in (low, end):
        panel.plot([x, x], [0.13, 0.23], color=INK, linewidth=1.2)
    wide = "" if scale(1 + difference) <= high else ", wider than all ranks"
    panel.text(end + 0.1, 0.18, f"CD {difference:.2f}{wide}", va="center", fontsize=8.5, color=INK)
    return scale
