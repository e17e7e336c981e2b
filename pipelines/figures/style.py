"""The style of all figures: colours, labels, titles, names of aggregators, files."""

from __future__ import annotations

import textwrap
from io import BytesIO
from pathlib import Path
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

BAR, INK, POINT, MUTED, LINE = "#a9c4de", "#1f2d3d", "#1c4e80", "#6b7785", "#e3e7eb"
WRAP = 34  # characters in a line of a label


def new_figure(width: float, height: float, heading: str = "", *, size: float = 12) -> Figure:
    """Return an empty figure with a constrained layout; sizes in inches, the heading in points."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    if heading:
        figure.suptitle(heading, x=0.01, ha="left", fontsize=size, fontweight="bold", color=INK)
    return figure


def save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=160)


def png(figure: Figure) -> bytes:
    """Return a figure as the bytes of a PNG."""
    content = BytesIO()
    figure.savefig(content, dpi=160)
    return content.getvalue()


def wrapped(label: str, width: int = WRAP) -> str:
    """Break a label into lines after spaces, and after `=`."""
    return textwrap.fill(label.replace("=", "= "), width).replace("= ", "=")


def lines_of(label: str) -> int:
    return wrapped(label).count("\n") + 1


def title(panel: Axes, text: str, *, pad: float = 14) -> None:
    """Put a title above the left end of a panel."""
    panel.set_title(text, loc="left", fontsize=11, fontweight="bold", color=INK, pad=pad)


def frame(
    panel: Axes,
    heading: str,
    *,
    x: str = "",
    y: str = "",
    size: float = 10,
    pad: float = 14,
    grid: Literal["both", "x", "y"] = "both",
    spines: tuple[str, ...] = ("left", "bottom"),
) -> None:
    """Set a panel's title, axis labels, grid and spines."""
    title(panel, heading, pad=pad)
    panel.set_xlabel(x, color=INK, fontsize=size)
    panel.set_ylabel(y, color=INK, fontsize=size)
    panel.grid(axis=grid, color=LINE, linewidth=0.8, zorder=0)
    bare(panel, spines=spines)


def bare(panel: Axes, *, spines: tuple[str, ...] = ()) -> None:
    """Remove the frame, except for some sides, and the marks of ticks."""
    panel.tick_params(length=0, colors=INK)
    for side in ("top", "right", "bottom", "left"):
        panel.spines[side].set_visible(side in spines)
        panel.spines[side].set_color(MUTED)
