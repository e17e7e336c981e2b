"""Figures of embeddings: the circular variance of sets, and the negatives in the loss with alignment and uniformity.

Sources: DivE, section 4.6 and table 3; of ADOPT, VSE+2AD, figure 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from torch.nn.utils.rnn import pad_sequence

from polypool.aggregators.observe import Watched
from polypool.infra.errors import InputError
from polypool.pipelines.figures.style import BAR, INK, MUTED, POINT, computed, frame, name_of, new_figure, png
from polypool.tasks.scoring.geometry import circular_variance, variance_of
from polypool.tasks.similarities.vectors import l2_normalise

_GOLDEN = 0.6180339887  # its multiples modulo one fill an interval evenly
_WIDE, _WIDE_HISTORY = 30, 8  # ratios of largest to smallest value from which the axes are logarithmic
History = Sequence[tuple[int, float]]  # pairs of step and value
_FEW = 30  # the most values that are marked
_COLOURS = {"alignment": "#0072b2", "uniformity": "#d55e00"}


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The circular variance of an aggregator's sets.

    Attributes:
        name: of the aggregator.
        vectors: number of vectors; None if it depends on the set.
        variance_S: of each set that was seen, between 0 and 1.
        log_mean: the natural logarithm of their mean.
    """

    name: str
    vectors: int | None
    variance_S: np.ndarray
    log_mean: float


def spread_of(watched: Watched) -> Spread | None:
    """Return the variance of an aggregator's normalised vectors.

    None if it makes one vector per set, or distributions, or no set was seen.

    Raises:
        InputError: the vectors of a set are not `num_embeddings`, or not finite.
    """
    size, sets = watched.aggregator.num_embeddings, [seen.vectors for seen in watched.seen]
    if size == 1 or watched.aggregator.makes == "distribution" or not sets:
        return None
    for vectors_KD in sets:
        fits = vectors_KD.dim() == 2 and len(vectors_KD) == (size or len(vectors_KD))
        if not fits or not vectors_KD.isfinite().all():
            raise InputError(
                f"expected {size or 'some'} finite vectors of each set, and one has shape {tuple(vectors_KD.shape)}"
            )
    # float64, as 1 - |mean| of a collapsed set is lost in rounding
    embedding_SKD = l2_normalise(pad_sequence(sets, batch_first=True).double().cpu())
    return Spread(
        name=name_of(watched),
        vectors=size,
        variance_S=circular_variance(embedding_SKD).clamp(min=0).numpy(),
        log_mean=variance_of(embedding_SKD)["log_variance"],
    )


def draw_variance(watched: Sequence[Watched], *, heading: str) -> bytes | None:
    """Return the figure as a PNG, or None if no aggregator makes sets; errors are logged as warnings."""
    spreads = [spread for it in watched if (spread := computed(spread_of, it, what="the embeddings"))]
    if not spreads:
        return None
    figure = new_figure(7.5, 1.3 + 0.95 * len(spreads), heading)
    panel = figure.subplots()
    value_A = np.concatenate([spread.variance_S for spread in spreads])
    if value_A.min() > 0 and value_A.max() > _WIDE * value_A.min():
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    for row, spread in enumerate(spreads):
        _row(panel, row, spread)
    panel.set_ylim(len(spreads) - 0.45, -0.6)
    panel.set_yticks(
        range(len(spreads)), [f"{it.name}\n{it.vectors or 'all'} vectors" for it in spreads], fontsize=9
    )
    if panel.get_xscale() == "linear":
        panel.set_xlim(0, 1.08 * value_A.max() or 1.0)
    frame(
        panel,
        "a point for each set, the line is their mean",
        x="circular variance of a set (0: collapsed, 1: its vectors cancel out)",
        size=9,
        pad=8,
        grid="x",
    )
    panel.tick_params(axis="x", labelsize=8.5, labelcolor=INK, color=MUTED)
    return png(figure)


def _row(panel: Axes, row: int, spread: Spread) -> None:
    value_S = np.sort(spread.variance_S)
    beside_S = row + 0.24 * (2 * (np.arange(1, len(value_S) + 1) * _GOLDEN % 1) - 1)
    panel.scatter(value_S, beside_S, s=14, color=BAR, edgecolor=POINT, linewidth=0.5, zorder=3)
    mean = value_S.mean()
    panel.plot([mean, mean], [row - 0.32, row + 0.32], color=INK, linewidth=2, zorder=4)
    label = f"mean {mean:.3g}, its logarithm {spread.log_mean:.2f}, {len(value_S)} sets"
    panel.annotate(
        label,
        (1, row - 0.42),
        xycoords=panel.get_yaxis_transform(),
        ha="right",
        va="center",
        fontsize=8.5,
        color=INK,
        zorder=5,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
    )


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
        _frame_history(panels[1], " and ".join(beside))
    panels[-1].set_xlabel("training step", color=INK, fontsize=9)
    panels[-1].xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    return png(figure)


def known(history: History) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and values without NaN and infinity."""
    rows = [(step, value) for step, value in history if math.isfinite(value)]
    return np.array([step for step, _ in rows]), np.array([value for _, value in rows])


def wide(value_S: np.ndarray) -> bool:
    """Whether positive values need a logarithmic axis."""
    return value_S.min() > 0 and value_S.max() >= _WIDE_HISTORY * value_S.min()


def _draw_counts(panel: Axes, step_S: np.ndarray, count_S: np.ndarray) -> None:
    _draw_line(panel, step_S, count_S, POINT, label=f"{count_S[-1]:.3g}")
    _frame_history(panel, "negatives in the loss (K)")
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


def _frame_history(panel: Axes, heading: str) -> None:
    frame(panel, heading, pad=8, grid="y")
    panel.tick_params(labelsize=8.5, labelcolor=INK, color=MUTED)
