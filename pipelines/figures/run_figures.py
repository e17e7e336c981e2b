"""Figures of a run: pooling coefficients, the circular variance of sets, negatives with alignment and uniformity.

Sources: VSE-infinity, figure 5; DivE, section 4.6 and table 3; VSE+2AD, figure 2 (of ADOPT).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import multimode
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from torch.nn.utils.rnn import pad_sequence

from polypool.aggregators.observe import Watched
from polypool.infra.errors import InputError
from polypool.pipelines.figures.style import BAR, INK, MUTED, POINT, frame, new_figure, png
from polypool.tasks.scoring.geometry import circular_variance, variance_of
from polypool.tasks.similarities.vectors import l2_normalise

_COLUMNS = 3
_SIZES = {1: (POINT,), 2: ("#7fa6cf", POINT), 3: ("#9cc3e6", "#4a86c5", INK)}
_PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", MUTED, INK)
"""Distinguishable with colour blindness (Okabe and Ito)."""
_BANDED = 2  # maximum number of embeddings with bands
_SEEN = 1e-6  # narrower bands are invisible
_FEW = 30  # maximum number of positions or steps with markers
_ROOM = 3  # names of curves per row of the legend
_AXES = {
    "ranks": "rank of a value in its channel (1 = largest)",
    "elements": "place in the set",
    "embeddings": "place in the set",
}
_PERCENTILES = (10, 90)
_OFF_ONE = 1e-2  # tolerance of the sum of weights, which may be bfloat16


def draw_coefficients(watched: Sequence[Watched], *, heading: str) -> bytes | None:
    """Return the figure as a PNG, or None if no aggregator has weights to show.

    Aggregators with fixed weights, such as `max`, are left out.

    Raises:
        InputError: as `curves_of`.
    """
    panels = [(it, curves) for it in watched if (curves := curves_of(it)) and not _known_before(it, curves)]
    if not panels:
        return None
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure(max(5.4, 4.8 * columns), 3.7 * rows + 0.3, heading)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel, (it, curves) in zip(axes, panels, strict=False):
        _panel(panel, it, curves)
    for panel in axes[len(panels) :]:
        panel.remove()
    return png(figure)


def _known_before(watched: Watched, curves: Sequence[Curve]) -> bool:
    """Whether an aggregator has no parameters, and the same weights for all sets of a size."""
    return not any(True for _ in watched.aggregator.parameters()) and not _spread(curves)


def _spread(curves: Sequence[Curve]) -> bool:
    """Whether weights differ visibly between sets."""
    return max((curve.high_N - curve.low_N).max() for curve in curves) > _SEEN


def _panel(panel: Axes, watched: Watched, curves: Sequence[Curve]) -> None:
    over, longest = watched.aggregator.weights_over, max(curve.size for curve in curves)
    # bands of many embeddings would hide each other
    banded = _spread(curves) and (over != "embeddings" or len(curves) <= _BANDED)
    marker = "o" if longest <= _FEW else ""
    for curve, colour in zip(curves, _colours(curves), strict=True):
        label = f"sets of {curve.size} ({curve.sets} of {len(watched.seen)})"
        if curve.embedding is not None:
            label = f"embedding {curve.embedding + 1}"
        place_N = range(1, curve.size + 1)
        panel.plot(
            place_N, curve.mean_N, color=colour, marker=marker, markersize=3.4, linewidth=1.7, label=label
        )
        if banded:
            panel.fill_between(place_N, curve.low_N, curve.high_N, color=colour, alpha=0.18, linewidth=0)
    for size in {curve.size for curve in curves if curve.sums_to_one}:
        panel.plot([1, size], [1 / size] * 2, color=MUTED, linewidth=1, linestyle=":")
    about = _legend(watched, curves, banded=banded)
    panel.text(0, 1.02, about, fontsize=8, color=MUTED, transform=panel.transAxes)
    panel.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    panel.set_ylim(bottom=min(0, panel.dataLim.y0))
    frame(panel, name_of(watched), x=_AXES[over], y="coefficient", size=9, pad=32, grid="y")
    if 1 < len(curves) <= len(_PALETTE):
        panel.legend(fontsize=8, frameon=False, labelcolor=INK, ncols=1 if len(curves) <= _ROOM else _ROOM)


def _colours(curves: Sequence[Curve]) -> Sequence[Any]:
    """Return a colour for each curve: darker for larger sets, or one for each embedding."""
    if curves[0].embedding is None:
        return _SIZES[len(curves)]
    if len(curves) <= len(_PALETTE):
        return _PALETTE[: len(curves)]
    return [colormaps["viridis"](k / (len(curves) - 1)) for k in range(len(curves))]


def _legend(watched: Watched, curves: Sequence[Curve], *, banded: bool) -> str:
    """Return one or two lines that explain the curves and the bands."""
    first = curves[0]
    if first.embedding is None and len(curves) > 1:
        about = "means; sizes of sets at the 10th, 50th and 90th percentile"
    else:
        rest = "" if first.sets == len(watched.seen) else f" ({len(watched.seen)} in all)"
        about = f"mean over {first.sets} sets of {first.size}{rest}"
    if len(curves) > len(_PALETTE):
        about += f"; embeddings 1 to {len(curves)} from dark to light"
    over = "sets, channels" if first.channels else "sets"
    more = [f"band: 10th to 90th percentile of {over}"] if banded else []
    more += ["dotted: mean pooling"] if first.sums_to_one else []
    return "\n".join([about, "; ".join(more)])


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Weights of the N positions of sets of one size, over sets and, if weights differ by channel, channels.

    Attributes:
        size: N.
        sets: number of sets.
        embedding: index among the K vectors; None if weights are not over embeddings.
        mean_N, low_N, high_N: the mean, the 10th and the 90th percentile.
        channels: whether weights differ by channel.
        sums_to_one: whether the weights of every set sum to one.
    """

    size: int
    sets: int
    embedding: int | None
    mean_N: np.ndarray
    low_N: np.ndarray
    high_N: np.ndarray
    channels: bool
    sums_to_one: bool


def curves_of(watched: Watched) -> list[Curve]:
    """Return the curves of an aggregator: of up to three sizes, or of each embedding for the most frequent size.

    The sizes are the 10th, 50th and 90th percentile; of equally frequent sizes the largest is taken. Empty if the
    aggregator has no weights, or no set was seen.

    Raises:
        InputError: the weights do not match `weights_over`, or are not finite.
    """
    over, curves = watched.aggregator.weights_over, list[Curve]()
    sizes = [seen.size for seen in watched.seen]
    if not sizes:
        return []
    if over == "embeddings":
        shown = [max(multimode(sizes))]
    else:
        shown = np.unique(np.percentile(sizes, (10, 50, 90), method="inverted_cdf")).tolist()
    for size in shown:
        weight_SKND = watched.weights(*(seen for seen in watched.seen if seen.size == size))
        if weight_SKND is None:
            return []
        curves += [
            _curve(weight_SKND[:, k].numpy(), embedding=k if over == "embeddings" else None)
            for k in range(weight_SKND.shape[1])
        ]
    return curves


def _curve(weight_SND: np.ndarray, *, embedding: int | None) -> Curve:
    apart_NS = np.moveaxis(weight_SND, 1, 0).reshape(weight_SND.shape[1], -1).copy()
    low_N, high_N = np.percentile(apart_NS, _PERCENTILES, axis=1, overwrite_input=True)
    return Curve(
        size=weight_SND.shape[1],
        sets=len(weight_SND),
        embedding=embedding,
        mean_N=weight_SND.mean(axis=(0, 2), dtype=np.float64),
        low_N=low_N,
        high_N=high_N,
        channels=weight_SND.shape[2] > 1,
        sums_to_one=bool(np.allclose(weight_SND.sum(axis=1), 1, atol=_OFF_ONE)),
    )


_GOLDEN = 0.6180339887  # its multiples modulo one fill an interval evenly
_WIDE = 10  # ratio of the largest to the smallest value from which an axis is logarithmic
History = Sequence[tuple[int, float]]  # pairs of step and value


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The circular variance of an aggregator's sets.

    Attributes:
        name: of the aggregator.
        vectors: number of vectors; None if it depends on the set.
        variance_S: of each observed set, between 0 and 1.
        log_mean: the natural logarithm of their mean.
    """

    name: str
    vectors: int | None
    variance_S: np.ndarray
    log_mean: float


def spread_of(watched: Watched) -> Spread | None:
    """Return the variance of an aggregator's normalised vectors.

    None if it returns one vector per set or distributions, or no set was observed.

    Raises:
        InputError: a set has not `num_embeddings` vectors, or they are not finite.
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
    """Return the figure as a PNG, or None if no aggregator returns sets; raises as `spread_of`."""
    spreads = [spread for it in watched if (spread := spread_of(it))]
    if not spreads:
        return None
    figure = new_figure(7.5, 1.3 + 0.95 * len(spreads), heading)
    panel = figure.subplots()
    value_A = np.concatenate([spread.variance_S for spread in spreads])
    if wide(value_A):
        panel.set_xscale("log")
    for row, spread in enumerate(spreads):
        value_S, mean = np.sort(spread.variance_S), spread.variance_S.mean()
        jitter_S = row + 0.24 * (2 * (np.arange(1, len(value_S) + 1) * _GOLDEN % 1) - 1)
        panel.scatter(value_S, jitter_S, s=14, color=BAR, edgecolor=POINT, linewidth=0.5)
        panel.plot([mean, mean], [row - 0.32, row + 0.32], color=INK, linewidth=2)
    labels = [
        f"{it.name}\n{it.vectors or 'all'} vectors, {len(it.variance_S)} sets\n"
        f"mean {it.variance_S.mean():.3g}, its logarithm {it.log_mean:.2f}"
        for it in spreads
    ]
    panel.set_yticks(range(len(spreads)), labels, fontsize=8.5)
    panel.set_ylim(len(spreads) - 0.45, -0.55)
    heading = "a point for each set, the line is their mean"
    x = "circular variance of a set (0: collapsed, 1: its vectors cancel out)"
    frame(panel, heading, x=x, size=9, pad=8, grid="x")
    return png(figure)


def draw_negatives(
    negatives: History, *, alignment: History, uniformity: History, heading: str
) -> bytes | None:
    """Return the figure as a PNG, or None if no number of negatives was logged.

    Args:
        negatives: K, the mean over both directions and the steps since the previous value.
        alignment: the mean score of pairs.
        uniformity: as in the objective.
        heading: of the figure.
    """
    histories = {"negatives in the loss (K)": negatives, "alignment": alignment, "uniformity": uniformity}
    shown = {name: values for name, history in histories.items() if len((values := known(history))[0])}
    if "negatives in the loss (K)" not in shown:
        return None
    figure = new_figure(7.5, 1.2 + 1.6 * len(shown), heading)
    panels = figure.subplots(len(shown), 1, squeeze=False, sharex=True)[:, 0]
    for panel, (name, (step_S, value_S)), colour in zip(panels, shown.items(), _PALETTE, strict=False):
        panel.plot(step_S, value_S, color=colour, marker="o" if len(step_S) <= _FEW else "", markersize=3.4)
        if name not in ("alignment", "uniformity") and wide(value_S):
            panel.set_yscale("log")
        frame(panel, f"{name}: {value_S[-1]:.3g} at the end", pad=8, grid="y")
    panels[-1].xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    panels[-1].set_xlabel("training step", color=INK, fontsize=9)
    return png(figure)


def known(history: History) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps with finite values, and these values."""
    rows = [(step, value) for step, value in history if math.isfinite(value)]
    return np.array([step for step, _ in rows]), np.array([value for _, value in rows])


def wide(value_S: np.ndarray) -> bool:
    """Whether positive values need a logarithmic axis."""
    return value_S.min() > 0 and value_S.max() >= _WIDE * value_S.min()


def name_of(watched: Watched) -> str:
    """Return the path and the class of an aggregator, such as `visual: GPO`."""
    path = watched.name.removesuffix("aggregator").removesuffix(".")
    kind = type(watched.aggregator).__name__
    return f"{path}: {kind}" if path else kind
