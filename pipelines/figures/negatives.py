"""Figure of ADOPT over a run: the number of negatives in the loss, alignment and uniformity (VSE+2AD, figure 2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from polypool.pipelines.figures.style import INK, MUTED, POINT, frame, new_figure, png

History = Sequence[tuple[int, float]]  # pairs of step and value

_WIDE = 8  # ratio of largest to smallest value from which the axis is logarithmic
_FEW = 30  # the most values that are marked
_COLOURS = {"alignment": "#0072b2", "uniformity": "#d55e00"}


def draw_negatives(
    negatives: History, *, alignment: History, uniformity: History, heading: str
) -> bytes | None:
    """Return the figure as a PNG, or None if no number of negatives was logged.

    Args:
        negatives: K, the mean over both directions and the steps since the value before.
        alignment: the mean score of pairs.
        uniformity: as in the objective.
        heading: of the figure.
    """
    step_S, count_S = known(negatives)
    if not len(step_S):
        return None
    beside = {"alignment": known(alignment), "uniformity": known(uniformity)}
    beside = {name: values for name, values in beside.items() if len(values[0])}
    ratios = [1.6, 1] if beside else [1]
    figure = new_figure(7.5, 5.4 if beside else 3.6, heading)
    panels = figure.subplots(len(ratios), 1, squeeze=False, height_ratios=ratios, sharex=True)[:, 0]
    _draw_counts(panels[0], step_S, count_S)
    if beside:
        upper = max(beside, key=lambda name: beside[name][1][-1])
        for name, (step_S, value_S) in beside.items():
            # names must not overlap if the lines end at the same value
            shift = 0 if len(beside) == 1 else 5 if name == upper else -5
            label = f"{name} {value_S[-1]:.2f}"
            _draw_line(panels[1], step_S, value_S, _COLOURS[name], label=label, shift=shift)
        _frame(panels[1], " and ".join(beside))
    panels[-1].set_xlabel("training step", color=INK, fontsize=9)
    panels[-1].xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    return png(figure)


def known(history: History) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and values without NaN and infinity."""
    rows = [(step, value) for step, value in history if math.isfinite(value)]
    return np.array([step for step, _ in rows]), np.array([value for _, value in rows])


def wide(value_S: np.ndarray) -> bool:
    """Whether positive values need a logarithmic axis."""
    return value_S.min() > 0 and value_S.max() >= _WIDE * value_S.min()


def _draw_counts(panel: Axes, step_S: np.ndarray, count_S: np.ndarray) -> None:
    _draw_line(panel, step_S, count_S, POINT, label=f"{count_S[-1]:.3g}")
    _frame(panel, "negatives in the loss (K)")
    if wide(count_S):
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_locator(NullLocator())
        panel.set_ylim(count_S.min() / 1.2, 1.2 * count_S.max())
    else:
        panel.set_ylim(0, 1.1 * count_S.max())


def _draw_line(
    panel: Axes, step_S: np.ndarray, value_S: np.ndarray, colour: str, *, label: str, shift: int = 0
) -> None:
    """Draw a line with its name at the end."""
    few: dict[str, Any] = {"marker": "o", "markersize": 3.4} if len(step_S) <= _FEW else {}
    panel.plot(step_S, value_S, color=colour, linewidth=1.7, zorder=3, **few)
    beside: dict[str, Any] = {"textcoords": "offset points", "va": "center", "annotation_clip": False}
    panel.annotate(label, (step_S[-1], value_S[-1]), (7, shift), color=colour, fontsize=9, **beside)


def _frame(panel: Axes, heading: str) -> None:
    frame(panel, heading, pad=8, grid="y")
    panel.tick_params(labelsize=8.5, labelcolor=INK, color=MUTED)
