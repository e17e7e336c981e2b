"""Visual against text aggregators: the K x K table of figure 6 of VSE-infinity, as a heat map of one recipe."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polypool.infra.text_tables import ABSENT, decimals
from polypool.pipelines.figures.heat import draw_heat
from polypool.pipelines.figures.style import INK, new_figure, save, title, wrapped
from polypool.tasks.adapter import Metric
from polypool.tasks.run import Run

_WRAP = 18


@dataclass(frozen=True, kw_only=True)
class PairMeans:
    """Means over seeds of one recipe's metric.

    Attributes:
        recipe: of the runs.
        protocol, metric: of the scores.
        visual, text: aggregators, in the order of the sweep.
        mean_VT: means; NaN where no run has finished.
        runs: smallest and largest number of runs of a mean.
    """

    recipe: str
    protocol: str
    metric: Metric
    visual: tuple[str, ...]
    text: tuple[str, ...]
    mean_VT: np.ndarray
    runs: tuple[int, int]


def pair_means(scored: Sequence[tuple[Run, Mapping[str, float]]], *, metric: Metric) -> PairMeans | None:
    """Arrange the finished runs of one recipe; None where none has finished.

    Args:
        scored: all runs, with their metrics, which are empty for unfinished ones.
        metric: the primary one of the recipe's task.
    """
    first = scored[0][0]
    name = f"{first.protocol}/{metric.name}"
    pairs = [(run.aggregator, run.text_aggregator or run.aggregator) for run, _ in scored]
    reached: dict[tuple[str, str], list[float]] = {}
    for pair, (_, metrics) in zip(pairs, scored, strict=True):
        if name in metrics:
            reached.setdefault(pair, []).append(metrics[name])
    if not reached:
        return None
    visual, text = (tuple(dict.fromkeys(side)) for side in zip(*pairs, strict=True))
    counts = [len(of) for of in reached.values()]
    return PairMeans(
        recipe=first.recipe,
        protocol=first.protocol,
        metric=metric,
        visual=visual,
        text=text,
        mean_VT=np.array([[statistics.fmean(reached.get((v, t), [math.nan])) for t in text] for v in visual]),
        runs=(min(counts), max(counts)),
    )


def draw_pairs(means: PairMeans, path: Path) -> None:
    """Write the heat map as a PNG."""
    rows, columns = means.mean_VT.shape
    figure = new_figure(max(5.0, 2.6 + 1.15 * columns), max(2.6, 1.5 + 0.55 * rows))
    panel = figure.subplots()
    digits = decimals(float(np.nanmax(np.abs([*means.mean_VT.flat, means.metric.best]))))
    draw_heat(
        panel,
        means.metric.relative(means.mean_VT),
        [[ABSENT if math.isnan(x) else f"{x:.{digits}f}" for x in row_T] for row_T in means.mean_VT],
        rows=[wrapped(name, _WRAP) for name in means.visual],
        columns=[wrapped(name, _WRAP) for name in means.text],
    )
    panel.set_xlabel("text aggregator", fontsize=9, color=INK)
    panel.set_ylabel("visual aggregator", fontsize=9, color=INK)
    few, many = means.runs
    over = "one run each" if many == 1 else f"mean over {few if few == many else f'{few} to {many}'} seeds"
    title(panel, f"{means.recipe} · {means.protocol} · {means.metric.label}\n{over}", pad=8)
    save(figure, path)
