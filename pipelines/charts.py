"""The figure of a comparison: one panel a block, one bar an aggregator, one point a run."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipelines.tables import Block

_BAR, _INK, _POINT, _MUTED = "#a9c4de", "#1f2d3d", "#1c4e80", "#6b7785"


def draw(blocks: Sequence[Block], path: Path) -> None:
    """Write the blocks as a PNG; bars are means over runs, lines their sample standard deviations."""
    spans = [len(block.rows) + 0.3 for block in blocks]
    figure = Figure(
        figsize=(8.5, 0.42 * sum(spans) + 1.1 * len(blocks)), layout="constrained", facecolor="white"
    )
    axes = figure.subplots(len(blocks), 1, squeeze=False, height_ratios=spans)[:, 0]
    for block, panel in zip(blocks, axes, strict=True):
        _panel(block, panel)
    figure.savefig(path, dpi=160)


def _panel(block: Block, panel: Axes) -> None:
    metric = block.metric
    panel.barh(
        range(len(block.rows)), [row.mean(metric) for row in block.rows], height=0.62, color=_BAR, zorder=2
    )
    for place, row in enumerate(block.rows):
        values, mean, deviation = row.values.get(metric, ()), row.mean(metric), row.deviation(metric)
        if not values:
            continue
        note, end = f"{mean:.1f}", max(values)
        if not math.isnan(deviation):
            panel.errorbar(mean, place, xerr=deviation, color=_INK, capsize=4, linewidth=1.3, zorder=3)
            note, end = f"{mean:.1f} ± {deviation:.1f}", max(end, mean + deviation)
        shift = 0.16 if len(values) > 1 else 0.0  # so that near points, and the line, stay visible
        apart = [place + shift * (-1) ** at for at in range(len(values))]
        panel.scatter(values, apart, s=18, color=_POINT, edgecolor="white", linewidth=0.6, zorder=4)
        beside = {"textcoords": "offset points", "va": "center"}
        panel.annotate(note, (end, place), (8, 0), color=_INK, fontsize=9, **beside)
    if not math.isnan(block.chance):
        panel.axvline(block.chance, color=_MUTED, linestyle=(0, (2, 2)), linewidth=1, zorder=5)
        above = panel.get_xaxis_transform()
        panel.text(block.chance, 1.01, " chance", transform=above, color=_MUTED, fontsize=8)
    _dress(block, panel)


def _dress(block: Block, panel: Axes) -> None:
    panel.set_title(block.title, loc="left", fontsize=11, fontweight="bold", color=_INK, pad=14)
    panel.set_yticks(range(len(block.rows)), [textwrap.fill(row.label, 34) for row in block.rows])
    panel.set_ylim(len(block.rows) - 0.35, -0.65)
    panel.set_xlabel(block.metric, color=_INK)
    panel.margins(x=0.16)
    panel.set_xlim(left=0)
    panel.grid(axis="x", color="#e3e7eb", linewidth=0.8, zorder=0)
    panel.tick_params(length=0, colors=_INK)
    for side in ("top", "right", "bottom", "left"):
        panel.spines[side].set_visible(side == "left")
    panel.spines["left"].set_color(_MUTED)
