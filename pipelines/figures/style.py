"""What figures share: colours, labels that fit, a file in one call."""

from __future__ import annotations

import textwrap
from io import BytesIO
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

BAR, INK, POINT, MUTED, LINE = "#a9c4de", "#1f2d3d", "#1c4e80", "#6b7785", "#e3e7eb"
WRAP = 34
"""Characters of a label before it goes on in the next line."""


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure whose parts make room for each other; inches."""
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def save(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG."""
    figure.savefig(path, dpi=160)


def png(figure: Figure) -> bytes:
    """Return a figure as a PNG."""
    content = BytesIO()
    figure.savefig(content, dpi=160)
    return content.getvalue()


def wrapped(label: str, width: int = WRAP) -> str:
    """Break a label into lines."""
    return textwrap.fill(label, width)


def lines_of(label: str, width: int = WRAP) -> int:
    """How many lines a wrapped label has."""
    return wrapped(label, width).count("\n") + 1


def title(panel: Axes, text: str, *, pad: float = 14) -> None:
    """Put a title above the left end of a panel."""
    panel.set_title(text, loc="left", fontsize=11, fontweight="bold", color=INK, pad=pad)


def bare(panel: Axes, *, keep: tuple[str, ...] = ()) -> None:
    """Take the frame away, except for some sides, and the ticks' marks."""
    panel.tick_params(length=0, colors=INK)
    for side in ("top", "right", "bottom", "left"):
        panel.spines[side].set_visible(side in keep)
        panel.spines[side].set_color(MUTED)
