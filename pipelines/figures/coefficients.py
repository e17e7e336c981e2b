"""Figure of pooling coefficients over positions, a panel for each aggregator with weights (VSE-infinity, figure 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from polypool.aggregators.observe import Watched
from polypool.pipelines.figures.curves import Curve, curves_of
from polypool.pipelines.figures.style import (
    INK,
    LINE,
    MUTED,
    POINT,
    bare,
    computed,
    name_of,
    new_figure,
    png,
    title,
)

_COLUMNS = 3
_SIZES = {1: (POINT,), 2: ("#7fa6cf", POINT), 3: ("#9cc3e6", "#4a86c5", INK)}
_PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", MUTED, INK)
"""Distinguishable with colour blindness (Okabe and Ito)."""
_BANDED = 2  # the most embeddings that have bands
_SEEN = 1e-6  # narrower bands are invisible
_FEW = 25  # the most positions that are marked
_ROOM, _ABOVE = (
    4,
    0.2,
)  # curves whose names lie among them, and what names of more take above, of the panel's height
_AXES = {
    "ranks": "rank of a value in its channel (1 = largest)",
    "elements": "place in the set",
    "embeddings": "place in the set",
}


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
    figure = new_figure(max(5.4, 4.8 * columns), 3.7 * rows + 0.3)
    figure.suptitle(heading, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
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
        _line(panel, curve, colour, above=-number, marked=longest <= _FEW, label=_label(curve, watched))
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
    title(panel, name_of(watched), pad=32)
    note: dict[str, Any] = {
        "fontsize": 8,
        "color": MUTED,
        "va": "top",
        "linespacing": 1.25,
        "textcoords": "offset points",
    }
    panel.annotate(_legend(watched, curves, banded=banded), (0, 1), (0, 27), xycoords="axes fraction", **note)
    panel.set_xlabel(_AXES[over], color=INK, fontsize=9)
    panel.set_ylabel("coefficient", color=INK, fontsize=9)
    _scale(panel, longest)
    panel.grid(axis="y", color=LINE, linewidth=0.8, zorder=0)
    bare(panel, spines=("left", "bottom"))
    panel.tick_params(labelsize=8.5)
    if 1 < len(curves) <= len(_PALETTE):
        name_curves(panel, len(curves))


def _line(panel: Axes, curve: Curve, colour: str, *, above: int, marked: bool, label: str) -> None:
    marks: dict[str, Any] = {"marker": "o", "markersize": 3.4} if marked else {}
    place_N = range(1, curve.size + 1)
    panel.plot(place_N, curve.mean_N, color=colour, linewidth=1.7, zorder=10 + above, label=label, **marks)


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
