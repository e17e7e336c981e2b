"""Critical-difference diagram: mean ranks over tasks, and which of them do not differ significantly.

Two aggregators differ at the level 0.05 where their mean ranks over N tasks are at least
CD = q sqrt(k (k + 1) / 6 N) apart; q is the studentised range of k and infinitely many degrees of freedom, over the
square root of 2. Bars join those that do not differ.

Source: Demsar, "Statistical comparisons of classifiers over multiple data sets", JMLR 7, 2006, section 3.2.2, figure 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from polypool.pipelines.figures.style import INK, MUTED, POINT, lines_of, new_figure, title, wrapped

_WRAP = 30
_LINE = 0.19  # inches of a label's line


def critical_difference(aggregators: int, tasks: int) -> float:
    """Return the difference of mean ranks that chance exceeds with a probability of 0.05 (Nemenyi)."""
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(0.95, aggregators, math.inf)) / math.sqrt(2)
    return q * math.sqrt(aggregators * (aggregators + 1) / (6 * tasks))


def cliques(rank_A: np.ndarray, difference: float) -> list[tuple[int, int]]:
    """Return the longest runs of ascending ranks that lie within a difference, as first and last place."""
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
            panel.text(x + 0.5 * way, y, wrapped(name, _WRAP), fontsize=9, color=INK, **place)
            y += _room(name) / 2
    return figure


def _room(name: str) -> float:
    return _LINE * lines_of(name, _WRAP) + 0.08


def _axis(panel: Axes, count: int, difference: float) -> Callable[[float], float]:
    """Draw the axis of ranks and the critical difference above it; return where a rank lies."""
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
