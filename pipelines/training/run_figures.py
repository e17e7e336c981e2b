"""The figures that every run makes at its end, of what its aggregators did and what its objective logged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from aggregators.observe import Watched
from pipelines.figures.coefficients import draw_coefficients
from pipelines.figures.negatives import History, draw_negatives
from pipelines.figures.variance import draw_variance


def run_figures(
    watched: Sequence[Watched], history: Callable[[str], History], *, title: str
) -> list[Callable[[], dict[str, bytes]]]:
    """Return what draws a run's figures: each returns a PNG by file name, or nothing where it does not apply.

    Args:
        watched: the model's aggregators and what was seen of them.
        history: steps and values of a metric by its name; empty where it was never logged.
        title: names the run in each figure.
    """
    figures: dict[str, Callable[[], bytes | None]] = {
        "pooling.png": lambda: draw_coefficients(watched, heading=f"{title}: pooling coefficients"),
        "variance.png": lambda: draw_variance(watched, heading=f"{title}: diversity of sets"),
        "negatives.png": lambda: draw_negatives(
            history("train/negatives"),
            alignment=history("train/alignment"),
            uniformity=history("train/uniformity"),
            heading=f"{title}: ADOPT",
        ),
    }
    return [partial(_drawn, name, draw) for name, draw in figures.items()]


def _drawn(name: str, draw: Callable[[], bytes | None]) -> dict[str, bytes]:
    figure = draw()
    return {} if figure is None else {name: figure}
