"""Visual against text aggregators: the K x K table of figure 6 of VSE-infinity, as a heat map for each recipe."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipelines.comparison.figures.scores import shaded
from pipelines.comparison.runs.groups import decimals, spoken
from pipelines.figures.style import INK, bare, new_figure, save, title, wrapped
from pipelines.sweeping.trials import Trial
from tasks.base import Metric

_WRAP = 18


@dataclass(frozen=True, kw_only=True)
class PairMeans:
    """Means over seeds of one recipe's metric.

    Attributes:
        recipe: which.
        protocol, metric: what the runs were scored under, and by.
        visual, text: aggregators, in the order of the sweep.
        mean_VT: means; NaN where no trial has finished.
        runs: fewest and most runs that a mean is over.
    """

    recipe: str
    protocol: str
    metric: Metric
    visual: tuple[str, ...]
    text: tuple[str, ...]
    mean_VT: np.ndarray
    runs: tuple[int, int]


def pair_means(
    trials: Sequence[Trial], values: Mapping[str, Mapping[str, float]], *, metric: Metric
) -> PairMeans | None:
    """Arrange the finished trials of one recipe.

    Args:
        trials: all of the recipe.
        values: what each finished trial's run logged, by the trial's name.
        metric: the primary one of the recipe's task.

    Returns:
        None where nothing has finished.
    """
    run = trials[0].run
    name = f"{run.protocol}/{metric.name}"
    reached: dict[tuple[str, str], list[float]] = {}
    for trial in trials:
        if name in values.get(trial.name, {}):
            reached.setdefault((trial.run.aggregator, _text(trial)), []).append(values[trial.name][name])
    if not reached:
        return None
    visual = tuple(dict.fromkeys(trial.run.aggregator for trial in trials))
    text = tuple(dict.fromkeys(_text(trial) for trial in trials))
    counts = [len(of) for of in reached.values()]
    mean_VT = np.array([[statistics.fmean(reached.get((v, t), [math.nan])) for t in text] for v in visual])
    return PairMeans(
        recipe=run.recipe,
        protocol=run.protocol,
        metric=metric,
        visual=visual,
        text=text,
        mean_VT=mean_VT,
        runs=(min(counts), max(counts)),
    )


def draw_pairs(means: PairMeans, path: Path) -> None:
    """Write the heat map as a PNG."""
    rows, columns = means.mean_VT.shape
    figure = new_figure(max(5.0, 2.6 + 1.15 * columns), max(2.6, 1.5 + 0.55 * rows))
    panel = figure.subplots()
    shade_VT = shaded(means.mean_VT, higher_is_better=means.metric.higher_is_better)
    digits = decimals(float(np.nanmax(np.abs([*means.mean_VT.flat, means.metric.best]))))
    panel.imshow(np.ma.masked_invalid(shade_VT), cmap="Blues", vmin=-0.15, vmax=1.25, aspect="auto")
    for (v, t), value in np.ndenumerate(means.mean_VT):
        dark = shade_VT[v, t] > 0.62
        number = "\u2013" if math.isnan(value) else f"{value:.{digits}f}"
        panel.text(t, v, number, ha="center", va="center", fontsize=9, color="white" if dark else INK)
    panel.set_xticks(range(columns), [wrapped(name, _WRAP) for name in means.text], fontsize=9)
    panel.set_yticks(range(rows), [wrapped(name, _WRAP) for name in means.visual], fontsize=9)
    panel.set_xlabel("text aggregator", fontsize=9, color=INK)
    panel.set_ylabel("visual aggregator", fontsize=9, color=INK)
    few, many = means.runs
    over = "one run each" if many == 1 else f"mean over {few if few == many else f'{few} to {many}'} seeds"
    title(panel, f"{means.recipe} · {means.protocol} · {spoken(means.metric)}\n{over}", pad=8)
    bare(panel)
    save(figure, path)


def _text(trial: Trial) -> str:
    return trial.run.text_aggregator or trial.run.aggregator
