"""The aggregators of a figure: what they are called, and what is said of one that a figure has to leave out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from aggregators.observe import Watched

T = TypeVar("T")

_log = logging.getLogger(__name__)


def name_of(watched: Watched) -> str:
    """Return where it works and its kind, such as `visual: GPO`."""
    place = watched.name.removesuffix("aggregator").removesuffix(".")
    kind = type(watched.aggregator).__name__
    return f"{place}: {kind}" if place else kind


def or_warn(compute: Callable[[Watched], T], watched: Watched, *, what: str) -> T | None:
    """Return what is computed of an aggregator, or None with a warning that names it.

    One of a plug-in may raise anything, and neither the run, which is over by then, nor the figure of the others fails.

    Args:
        compute: what may raise.
        watched: the aggregator.
        what: is not drawn.
    """
    try:
        return compute(watched)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        _log.warning("%s of the aggregator %s are not drawn: %s", what, name_of(watched), said)
        return None
