"""Heat maps, whose shades run from the worst to the best: task x aggregator, and visual against text aggregators."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from polypool.infra.text_tables import ABSENT, decimals
from polypool.pipelines.comparison.tables.cross_task import Column, CrossTaskTable
from polypool.pipelines.figures.style import INK, bare, lines_of, new_figure, title, wrapped
from polypool.tasks.adapter import Metric
from polypool.tasks.run import Run

_HEADER, _WRAP = 16, 18  # characters of a line above a column of tasks, and of the name of one of a pair


def draw_cross_task(cross_task: CrossTaskTable) -> Figure:
    """Draw task x aggregator; shades are of the scores of each column by themselves."""
    names, columns = cross_task.aggregators, cross_task.columns
    above = ["\n".join(wrapped(line, _HEADER) for line in column.title) for column in columns]
    values = [np.array([column.value(name) for name in names]) for column in columns]
    shades = [column.group.ranked_by.relative(value) for column, value in zip(columns, values, strict=True)]
    row = 0.3 * max(1.0, 0.62 * max(map(lines_of, names)))
    header = 0.17 * max(text.count("\n") + 1 for text in above)
    heading = "primary metric (chance-normalised: 0 is chance, 100 the best possible)"
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
    rows, columns = ([wrapped(name, _WRAP) for name in names] for names in (visual, text))
    _draw_cells(panel, metric.relative(mean_VT), notes, rows=rows, columns=columns)
    panel.set_xlabel("text aggregator", fontsize=9, color=INK)
    panel.set_ylabel("visual aggregator", fontsize=9, color=INK)
    few, many = min(counts), max(counts)
    over = "one run each" if many == 1 else f"mean over {few if few == many else f'{few} to {many}'} seeds"
    title(panel, f"{run.recipe} · {run.protocol} · {metric.label}\n{over}", pad=8)
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
        notes: what stands in each cell, by rows.
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
