"""Heat maps: numbers in cells whose shades run from the worst to the best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from polypool.pipelines.figures.style import INK, bare


def draw_heat(
    panel: Axes,
    shade_RC: np.ndarray,
    notes: Sequence[Sequence[str]],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    note_size: float = 9,
    column_size: float = 9,
) -> None:
    """Draw a heat map.

    Args:
        panel: where.
        shade_RC: of each cell 0 for the worst and 1 for the best; NaN for none.
        notes: what stands in each cell, by rows.
        rows, columns: their labels.
        note_size, column_size: font sizes of the notes and of the columns' labels.
    """
    panel.imshow(np.ma.masked_invalid(shade_RC), cmap="Blues", vmin=-0.15, vmax=1.25, aspect="auto")
    for (r, c), shade in np.ndenumerate(shade_RC):
        colour = "white" if shade > 0.62 else INK
        panel.text(c, r, notes[r][c], ha="center", va="center", fontsize=note_size, color=colour)
    panel.set_xticks(range(len(columns)), columns, fontsize=column_size)
    panel.set_yticks(range(len(rows)), rows, fontsize=9)
    bare(panel)
