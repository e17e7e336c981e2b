"""The figures that every run makes at its end, of what its aggregators did and what its objective logged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from aggregators.observe import Watched
from pipelines.figures.coefficients import draw_coefficients
from pipelines.figures.negatives import History, draw_negatives
from pipelines.figures.variance import draw_variance

_log = logging.getLogger(__name__)


def draw_run(
    watched: Sequence[Watched], history: Callable[[str], History], *, title: str
) -> dict[str, bytes]:
    """Return the figures that apply to a run, as PNGs by file name.

    Never raises, since the run is over by then: a figure that cannot be made is left out with a warning.

    Args:
        watched: the model's aggregators and what was seen of them.
        history: steps and values of a metric by its name; empty where it was never logged.
        title: names the run in each figure.
    """
    makers: dict[str, Callable[[], bytes | None]] = {
        "pooling.png": lambda: draw_coefficients(watched, heading=f"{title}: pooling coefficients"),
        "variance.png": lambda: draw_variance(watched, heading=f"{title}: diversity of sets"),
        "negatives.png": lambda: draw_negatives(
            history("train/negatives"),
            alignment=history("train/alignment"),
            uniformity=history("train/uniformity"),
            heading=f"{title}: ADOPT",
        ),
    }
    figures = {}
    for name, make in makers.items():
        try:
            figure = make()
        except Exception:
            _log.warning("the figure %s of %s could not be made", name, title, exc_info=True)
            continue
        if figure is not None:
            figures[name] = figure
    return figures
