"""Visual against text aggregators: the K x K grid of figure 6 of VSE-infinity, as a heat map for each recipe."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipelines.comparison.groups import METRICS
from pipelines.figures.style import INK, bare, new_figure, save, title, wrapped
from pipelines.sweeping.trials import Trial

_WRAP = 18


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Means over seeds of one recipe's metric.

    Attributes:
        recipe: which.
        metric: with the protocol, such as `whole/rsum`.
        visual, text: aggregators, in the order of the sweep.
        mean_VT: means; NaN where no trial has finished.
        runs: fewest and most runs that a mean is over.
    """

    recipe: str
    metric: str
    visual: tuple[str, ...]
    text: tuple[str, ...]
    mean_VT: np.ndarray
    runs: tuple[int, int]


def pairs_of(trials: Sequence[Trial], metrics: Mapping[str, Mapping[str, float]]) -> Pairs | None:
    """Arrange the finished trials of one recipe.

    Args:
        trials: all of the recipe.
        metrics: those of each finished trial's run, by the trial's name.

    Returns:
        None where nothing has finished.
    """
    run = trials[0].run
    known = [metrics[trial.name] for trial in trials if trial.name in metrics]
    names = [f"{run.protocol}/{name}" for name in METRICS]
    metric = next((name for name in names if any(name in values for values in known)), "")
    if not metric:
        return None
    visual = tuple(dict.fromkeys(trial.run.aggregator for trial in trials))
    text = tuple(dict.fromkeys(_text(trial) for trial in trials))
    values: dict[tuple[str, str], list[float]] = {}
    for trial in trials:
        if metric in metrics.get(trial.name, {}):
            values.setdefault((trial.run.aggregator, _text(trial)), []).append(metrics[trial.name][metric])
    counts = [len(of) for of in values.values()]
    mean_VT = np.array([[statistics.fmean(values.get((v, t), [math.nan])) for t in text] for v in visual])
    return Pairs(
        recipe=run.recipe,
        metric=metric,
        visual=visual,
        text=text,
        mean_VT=mean_VT,
        runs=(min(counts), max(counts)),
    )


def draw_pairs(pairs: Pairs, path: Path) -> None:
    """Write the heat map as a PNG."""
    rows, columns = pairs.mean_VT.shape
    figure = new_figure(max(5.0, 2.6 + 1.15 * columns), max(2.6, 1.5 + 0.55 * rows))
    panel = figure.subplots()
    known = pairs.mean_VT[~np.isnan(pairs.mean_VT)]
    low, spread = known.min(), np.ptp(known) or 1.0
    shade_VT = (pairs.mean_VT - low) / spread if np.ptp(known) else pairs.mean_VT * 0 + 0.5
    panel.imshow(np.ma.masked_invalid(shade_VT), cmap="Blues", vmin=-0.15, vmax=1.25, aspect="auto")
    for (v, t), value in np.ndenumerate(pairs.mean_VT):
        dark = shade_VT[v, t] > 0.62
        said = "\u2013" if math.isnan(value) else f"{value:.1f}"
        panel.text(t, v, said, ha="center", va="center", fontsize=9, color="white" if dark else INK)
    panel.set_xticks(range(columns), [wrapped(name, _WRAP) for name in pairs.text], fontsize=9)
    panel.set_yticks(range(rows), [wrapped(name, _WRAP) for name in pairs.visual], fontsize=9)
    panel.set_xlabel("text aggregator", fontsize=9, color=INK)
    panel.set_ylabel("visual aggregator", fontsize=9, color=INK)
    few, many = pairs.runs
    over = "one run each" if many == 1 else f"mean over {few if few == many else f'{few} to {many}'} seeds"
    title(panel, f"{pairs.recipe} · {pairs.metric}\n{over}", pad=8)
    bare(panel)
    save(figure, path)


def _text(trial: Trial) -> str:
    return trial.run.text_aggregator or trial.run.aggregator
