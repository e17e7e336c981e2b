"""Report of the experiment: its errors beside the published ones, and a figure of the learned weights."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.gpo_patterns.patterns import pattern_weights
from polypool.aggregators.ranks.gpo import GPO

FIGURE = "weights.png"
_DRAWN = {15: "#c8553d", 60: "#1c4e80", 110: "#6b7785"}
"""Sizes in the figure: smaller than those seen in training, seen, larger."""


@dataclass(frozen=True, kw_only=True)
class Results:
    """Errors of designs D, on sizes Z, of patterns P, in repetitions R, and the published ones."""

    designs: tuple[str, ...]
    sizes: Mapping[str, range]
    patterns: tuple[str, ...]
    rmse_DZPR: np.ndarray
    published_DZP: np.ndarray

    def table(self) -> str:
        """Return every number beside the published one."""
        heads = (f"{name}, {span.start} to {span.stop - 1}" for name, span in self.sizes.items())
        lines = [" " * 9 + "".join(f"  {head:^32}" for head in heads)]
        lines.append(" " * 9 + f"  {'ours':<15}  {'paper':>6} {'off':>8}" * len(self.sizes))
        for d, design in enumerate(self.designs):
            ours, published = self.rmse_DZPR[d].mean(), self.published_DZP[d].mean()
            lines += ["", f"{design}: {ours:.4f} on average, published {published:.4f}"]
            for p, pattern in enumerate(self.patterns):
                pairs = zip(self.rmse_DZPR[d, :, p], self.published_DZP[d, :, p], strict=True)
                lines.append(f"  {pattern:<7}" + "".join(_entry(*pair) for pair in pairs))
        return "\n".join(lines)

    def verdict(self, design: str) -> str:
        """Say which design is best, and how far one is from its published numbers."""
        mean_DZP, d = self.rmse_DZPR.mean(axis=-1), self.designs.index(design)
        best = self.designs[mean_DZP.mean(axis=(1, 2)).argmin()]
        off_ZP = abs(mean_DZP[d] - self.published_DZP[d])
        z, p = np.unravel_index(off_ZP.argmax(), off_ZP.shape)
        where = f"{self.patterns[p]}, {list(self.sizes)[z]} sizes"
        return f"best on average: {best}\n{design}: at most {off_ZP[z, p]:.4f} off the paper ({where})"

    def metrics(self) -> dict[str, float]:
        """Return all numbers under names that MLflow takes: `rmse/sinusoids-BiGRU/seen/M-10`."""
        metrics = {}
        names = (enumerate(axis) for axis in (self.designs, self.sizes, self.patterns))
        for (d, design), (z, sizes), (p, pattern) in itertools.product(*names):
            name = f"{design}/{sizes}/{pattern}".replace(" + ", "-").replace("%", "")
            ours_R, published = self.rmse_DZPR[d, z, p], self.published_DZP[d, z, p]
            metrics[f"rmse/{name}"], metrics[f"published/{name}"] = ours_R.mean(), published
            metrics[f"difference/{name}"] = ours_R.mean() - published
            if len(ours_R) > 1:
                metrics[f"deviation/{name}"] = ours_R.std(ddof=1)
        return metrics


def _entry(rmse_R: np.ndarray, published: float) -> str:
    mean = rmse_R.mean()
    spread = f"± {rmse_R.std(ddof=1):.4f}" if len(rmse_R) > 1 else ""
    return f"  {mean:.4f} {spread:<8}  {published:>6.3f} {mean - published:>+8.4f}"


def draw(generators: Mapping[tuple[str, str], GPO], path: Path) -> None:
    """Draw learned weights (lines) and their patterns (dots) over the rank, a row for each design.

    Args:
        generators: by design and pattern.
        path: of the PNG.
    """
    designs, patterns = (list(dict.fromkeys(names)) for names in zip(*generators, strict=True))
    figure = Figure(figsize=(2.7 * len(patterns), 2.1 * len(designs)), layout="constrained")
    axes = figure.subplots(len(designs), len(patterns), squeeze=False, sharex=True, sharey="col")
    for row, design in zip(axes, designs, strict=True):
        row[0].set_ylabel(design)
        for panel, pattern in zip(row, patterns, strict=True):
            _panel(panel, generators[design, pattern], pattern)
    for panel, pattern in zip(axes[0], patterns, strict=True):
        panel.set_title(pattern)
    for panel in axes[-1]:
        panel.set_xlabel("rank")
    axes[0, -1].legend(title="set size", fontsize=7, title_fontsize=7, frameon=False)
    figure.savefig(path, dpi=140)


@torch.no_grad()
def _panel(panel: Axes, generator: GPO, pattern: str) -> None:
    for size, colour in _DRAWN.items():
        size_S = torch.tensor([size])
        panel.plot(generator.size_weights(size_S)[0], color=colour, linewidth=1.2, label=size)
        panel.plot(pattern_weights(pattern, size_S)[0], ".", color=colour, markersize=2.2, alpha=0.5)
    panel.tick_params(labelsize=7)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
