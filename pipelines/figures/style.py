"""What figures share: colours, labels that fit, names of aggregators, a file in one call."""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from aggregators.observe import Watched

T = TypeVar("T")

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


def bare(panel: Axes, *, spines: tuple[str, ...] = ()) -> None:
    """Take the frame away, except for some sides, and the ticks' marks."""
    panel.tick_params(length=0, colors=INK)
    for side in ("top", "right", "bottom", "left"):
        panel.spines[side].set_visible(side in spines)
        panel.spines[side].set_color(MUTED)


def name_of(watched: Watched) -> str:
    """Return where it works and its kind, such as `visual: GPO`."""
    place = watched.name.removesuffix("aggregator").removesuffix(".")
    kind = type(watched.aggregator).__name__
    return f"{place}: {kind}" if place else kind


def computed(compute: Callable[[Watched], T], watched: Watched, *, what: str) -> T | None:
    """Return what is computed of an aggregator, or None with a warning that names it.

    One of a plug-in may raise anything, and neither the run, which is over by then, nor the figure of the others fails.

    Args:
        compute: returns it; anything that it raises is the reason in the warning.
        watched: the aggregator.
        what: what is computed, such as `the weights`.
    """
    try:
        return compute(watched)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        logging.getLogger(__name__).warning(
            "%s of the aggregator %s are not drawn: %s", what, name_of(watched), reason
        )
        return None
