"""The heat map: task x aggregator, coloured by the score chance_normalised on chance, with the metric itself in the cells."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from pipelines.comparison.cross_task import Grid
from pipelines.figures.style import INK, bare, lines_of, new_figure, save, wrapped

_HEADER = 16  # characters a line above a column


def draw_heat(grid: Grid, path: Path) -> None:
    """Write the grid as a PNG; the colours of each column run from its lowest to its highest score."""
    names, columns = grid.aggregators, grid.columns
    above = ["\n".join(wrapped(line, _HEADER) for line in column.title) for column in columns]
    score_AC = np.array([[column.chance_normalised(name) for column in columns] for name in names])
    value_AC = np.array([[column.value(name) for column in columns] for name in names])
    shade_AC = np.apply_along_axis(_shaded, 0, np.where(np.isnan(score_AC), value_AC, score_AC))
    # columns without a chance level are coloured by the metric alone
    row = 0.3 * max(1.0, 0.62 * max(map(lines_of, names)))
    header = 0.17 * max(text.count("\n") + 1 for text in above)
    figure = new_figure(max(6.2, 3.4 + 1.35 * len(columns)), row * len(names) + header + 0.9)
    panel = figure.subplots()
    panel.imshow(np.ma.masked_invalid(shade_AC), cmap="Blues", vmin=-0.15, vmax=1.25, aspect="auto")
    for (a, c), value in np.ndenumerate(value_AC):
        if not math.isnan(value):
            note = f"{value:.1f}" + ("" if math.isnan(score_AC[a, c]) else f"  ({score_AC[a, c]:.1f})")
            colour = "white" if shade_AC[a, c] > 0.62 else INK
            panel.text(c, a, note, ha="center", va="center", fontsize=8.5, color=colour)
        else:
            panel.text(c, a, "\u2013", ha="center", va="center", fontsize=8.5, color=INK)
    panel.set_xticks(range(len(columns)), above, fontsize=8.5)
    panel.xaxis.tick_top()
    panel.set_yticks(range(len(names)), [wrapped(name) for name in names], fontsize=9)
    said = "main metric (chance_normalised: 0 is chance, 100 the best possible)"
    figure.suptitle(said, x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK)
    bare(panel)
    save(figure, path)


def _shaded(score_A: np.ndarray) -> np.ndarray:
    """Bring a column to 0 for its lowest and 1 for its highest score."""
    known_A = score_A[~np.isnan(score_A)]
    if not known_A.size or known_A.min() == known_A.max():
        return score_A * 0 + 0.5
    return (score_A - known_A.min()) / np.ptp(known_A)
