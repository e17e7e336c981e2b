"""Figure of pooling coefficients over positions, a panel for each aggregator with weights (VSE-infinity, figure 5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from polypool.aggregators.observe import Watched
from polypool.pipelines.figures.style import INK, MUTED, POINT, computed, frame, name_of, new_figure, png

_COLUMNS = 3
_SIZES = {1: (POINT,), 2: ("#7fa6cf", POINT), 3: ("#9cc3e6", "#4a86c5", INK)}
_PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", MUTED, INK)
"""Distinguishable with colour blindness (Okabe and Ito)."""
_BANDED = 2  # the most embeddings that have bands
_SEEN = 1e-6  # narrower bands are invisible
_FEW = 25  # the most positions that are marked
_ROOM = 4  # curves whose names are drawn among them
_ABOVE = 0.2  # of the panel's height, which the names of more curves take above them
_AXES = {
    "ranks": "rank of a value in its channel (1 = largest)",
    "elements": "place in the set",
    "embeddings": "place in the set",
}
_PERCENTILES = (10, 90)
_OFF_ONE = 1e-2  # tolerance of the sum of weights, which may be bfloat16


def draw_coefficients(watched: Sequence[Watched], *, heading: str) -> bytes | None:
    """Return the figure as a PNG, or None if no aggregator has weights to show.

    Aggregators with weights that are fixed by definition, such as `max`, are left out; those whose weights cannot be
    computed, too, with a warning.
    """
    panels = [
        (it, curves)
        for it in watched
        if (curves := computed(curves_of, it, what="the weights")) and not _known_before(it, curves)
    ]
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
    learns = any(True for _ in watched.aggregator.parameters())
    return not learns and max((curve.high_N - curve.low_N).max() for curve in curves) <= _SEEN


def _panel(panel: Axes, watched: Watched, curves: Sequence[Curve]) -> None:
    over, longest = watched.aggregator.weights_over, max(curve.size for curve in curves)
    # bands of many embeddings would hide each other
    banded = over != "embeddings" or len(curves) <= _BANDED
    banded = banded and max((curve.high_N - curve.low_N).max() for curve in curves) > _SEEN
    for number, (curve, colour) in enumerate(zip(curves, _colours(curves), strict=True)):
        marks: dict[str, Any] = {"marker": "o", "markersize": 3.4} if longest <= _FEW else {}
        line: dict[str, Any] = {"linewidth": 1.7, "zorder": 10 - number, "label": _label(curve, watched)}
        panel.plot(range(1, curve.size + 1), curve.mean_N, color=colour, **line, **marks)
        if banded:
            shade: dict[str, Any] = {"alpha": 0.22 if len(curves) == 1 else 0.16, "linewidth": 0, "zorder": 2}
            panel.fill_between(range(1, curve.size + 1), curve.low_N, curve.high_N, color=colour, **shade)
        if curve.sums_to_one and (over != "embeddings" or number == 0):
            flat: dict[str, Any] = {
                "color": MUTED if over == "embeddings" else colour,
                "linewidth": 1,
                "linestyle": (0, (2, 2)),
            }
            panel.plot([1, curve.size], [1 / curve.size] * 2, zorder=3, **flat)
    note: dict[str, Any] = {
        "fontsize": 8,
        "color": MUTED,
        "va": "top",
        "linespacing": 1.25,
        "textcoords": "offset points",
    }
    panel.annotate(_legend(watched, curves, banded=banded), (0, 1), (0, 27), xycoords="axes fraction", **note)
    _scale(panel, longest)
    frame(panel, name_of(watched), x=_AXES[over], y="coefficient", size=9, pad=32, grid="y")
    panel.tick_params(labelsize=8.5)
    if 1 < len(curves) <= len(_PALETTE):
        name_curves(panel, len(curves))


def _scale(panel: Axes, longest: int) -> None:
    """Let positions begin at 1, and coefficients at 0 unless some are negative."""
    panel.set_xlim(0.5 - 0.01 * longest, longest + 0.5 + 0.01 * longest)
    ticks = MaxNLocator(nbins=7, integer=True).tick_values(1, longest)
    panel.set_xticks([1, *(int(tick) for tick in ticks if 1 < tick <= longest)])
    low, high = panel.dataLim.intervaly
    if low < 0:
        panel.axhline(0, color=MUTED, linewidth=0.8, zorder=1)
    else:
        panel.set_ylim(0, 1.08 * high or 1.0)


def name_curves(panel: Axes, count: int) -> None:
    """Add a legend: among few curves where there is room, above many."""
    usual = {"fontsize": 8, "frameon": False, "labelcolor": INK, "handlelength": 1.4}
    if count <= _ROOM:
        panel.legend(loc="best", **usual)
        return
    low, high = panel.get_ylim()
    panel.set_ylim(low, high + _ABOVE * (high - low))
    panel.legend(loc="upper center", ncols=_ROOM, columnspacing=1.0, **usual)


def _colours(curves: Sequence[Curve]) -> Sequence[Any]:
    """Return a colour for each curve: darker for larger sets, or one for each embedding."""
    if curves[0].embedding is None:
        return _SIZES[len(curves)]
    if len(curves) <= len(_PALETTE):
        return _PALETTE[: len(curves)]
    return [colormaps["viridis"](k / (len(curves) - 1)) for k in range(len(curves))]


def _label(curve: Curve, watched: Watched) -> str:
    if curve.embedding is not None:
        return f"embedding {curve.embedding + 1}"
    return f"sets of {curve.size} ({curve.sets} of {len(watched.seen)})"


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
    more += ["dashed: mean pooling"] if first.sums_to_one else []
    return "\n".join([about, "; ".join(more)])


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Weights of the N positions of sets of one size, over sets and, if these have weights of their own, channels.

    Attributes:
        size: N.
        sets: number of sets.
        embedding: index among the K vectors; None if weights are not over embeddings.
        mean_N, low_N, high_N: the mean, the 10th and the 90th percentile.
        channels: whether channels have weights of their own.
        sums_to_one: whether the weights of every set do.
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

    Empty if it has no weights, or no set was seen.

    Raises:
        InputError: the weights do not fit `weights_over`, or are not finite.
    """
    over = watched.aggregator.weights_over
    sizes = [seen.size for seen in watched.seen]
    curves: list[Curve] = []
    for size in [most_frequent(sizes)] if over == "embeddings" and sizes else typical(sizes):
        weight_SKND = watched.weights(*(seen for seen in watched.seen if seen.size == size))
        if weight_SKND is None:
            return []
        curves += [
            _curve(weight_SKND[:, k].numpy(), embedding=k if over == "embeddings" else None)
            for k in range(weight_SKND.shape[1])
        ]
    return curves


def typical(sizes: Sequence[int]) -> list[int]:
    """Return the 10th, 50th and 90th percentile of sizes, without interpolation and duplicates."""
    if not sizes:
        return []
    chosen = np.percentile(sizes, (10, 50, 90), method="inverted_cdf")
    return [int(size) for size, _ in groupby(chosen)]


def most_frequent(sizes: Sequence[int]) -> int:
    """Return the most frequent size, the largest of several."""
    counts = Counter(sizes)
    return max(counts, key=lambda size: (counts[size], size))


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
