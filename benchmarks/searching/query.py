"""Cost of one text query against galleries of growing size, scored in three ways.

As in VSE-infinity, figure 3, and DivE, section 4.4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measure import Measurement, Scale, Size, seconds
from benchmarks.random_data import whole_sets
from polypool.infra.paths import home
from polypool.infra.registry import AGGREGATORS, CROSS_ENCODERS, OBJECTIVES, SIMILARITIES
from polypool.tasks.models.branch import Branch
from polypool.tasks.models.pair_encoder import PaddedSets, PairEncoder
from polypool.tasks.similarities.vectors import l2_normalise

COLOURS = {"dual encoder": "#1c4e80", "sets of 4": "#c1622d", "cross-modal": "#6b7785"}


@dataclass(frozen=True, kw_only=True)
class QuerySize(Size):
    """Galleries, the widths of embeddings, and the sets of a pair as score attention has them."""

    tiny: ClassVar = {
        "galleries": (20, 50),
        "width": 16,
        "pair_width": 16,
        "regions": 3,
        "words": 2,
        "heads": 2,
        "pairs": 8,
        "rounds": 1,
    }
    galleries: tuple[int, ...] = (1_000, 3_000, 10_000, 30_000, 100_000)
    width: int = 1024
    k: int = 4
    pair_width: int = 512
    regions: int = 36
    words: int = 14
    heads: int = 8
    pairs: int = 512
    rounds: int = 5


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one query: seconds `(R, S)` in each round and for each gallery, and operations a pair."""

    seconds_RS: np.ndarray
    flops: float


def query(scale: Scale = "full") -> list[Measurement]:
    """Measure one query against each gallery, and draw it."""
    size = QuerySize.of(scale)
    with torch.inference_mode():
        costs = {"dual encoder": _dual(size), f"sets of {size.k}": _sets(size), "cross-modal": _cross(size)}
    path = draw(costs, size, home() / "bench" / "query.png")
    operations = ", ".join(f"{name} {cost.flops:,.0f}" for name, cost in costs.items())
    note = (
        f"Floating-point operations a pair: {operations}. The embeddings are ready; a pair of the cross-modal model "
        f"({size.regions} regions, {size.words} words, width {size.pair_width}) is measured on {size.pairs} pairs and "
        f"multiplied, since its cost is the same for each. Drawn in {path}."
    )
    last, slow = size.galleries[-1], costs.pop("cross-modal")
    return [
        _row(name, cost, slow, size, place, note if (name, place) == ("dual encoder", 0) else "")
        for place in (0, size.galleries.index(last))
        for name, cost in costs.items()
    ]


def draw(costs: dict[str, Cost], size: QuerySize, path: Path) -> Path:
    """Write the figure: time on the left, operations on the right, over the size of the gallery."""
    figure = Figure(figsize=(9, 3.6), layout="constrained", facecolor="white")
    time, work = figure.subplots(1, 2)
    for name, cost in costs.items():
        style = {"color": COLOURS[name], "marker": "o", "markersize": 4, "label": name}
        time.plot(size.galleries, np.median(cost.seconds_RS, axis=0), **style)
        work.plot(size.galleries, cost.flops * np.array(size.galleries), **style)
    for panel, label in ((time, "seconds a query"), (work, "floating-point operations a query")):
        panel.set(xscale="log", yscale="log", xlabel="images in the gallery", ylabel=label)
        panel.grid(color="#e3e7eb", linewidth=0.8)
        panel.spines[["top", "right"]].set_visible(False)
    time.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
    return path


def _dual(size: QuerySize) -> Cost:
    return _of_embeddings(SIMILARITIES.build("cosine"), (size.width,), size)


def _sets(size: QuerySize) -> Cost:
    return _of_embeddings(SIMILARITIES.build("smooth_chamfer(alpha=16)"), (size.k, size.width), size)


def _of_embeddings(similarity: nn.Module, shape: tuple[int, ...], size: QuerySize) -> Cost:
    gallery = l2_normalise(torch.randn(size.galleries[-1], *shape))
    caption = l2_normalise(torch.randn(1, *shape))

    def score(images: int) -> Tensor:
        return similarity(caption, gallery[:images])

    return Cost(seconds_RS=_times(score, size.galleries, size.rounds), flops=_flops(score, size.galleries[0]))


def _cross(size: QuerySize) -> Cost:
    model = _pair_model(size).eval()
    images = PaddedSets(*whole_sets(size.pairs, size.regions, size.pair_width))
    caption = PaddedSets(*whole_sets(1, size.words, size.pair_width))

    def score(pairs: int) -> Tensor:
        return model.score(PaddedSets(*(part[:pairs] for part in images)), caption)

    each_R1 = _times(score, (size.pairs,), size.rounds) / size.pairs
    return Cost(seconds_RS=each_R1 * np.array(size.galleries), flops=_flops(score, size.pairs))


def _pair_model(size: QuerySize) -> PairEncoder:
    branches = (
        Branch(
            _Ready(size.pair_width),
            AGGREGATORS.build(f"score_attention(heads={size.heads})", size.pair_width),
        )
        for _ in range(2)
    )
    cross = CROSS_ENCODERS.build(f"cross_modal(heads={size.heads})", size.pair_width)
    return PairEncoder(*branches, SIMILARITIES.build("cosine"), OBJECTIVES.build("infonce"), cross=cross)


class _Ready(nn.Module):
    """In the place of an encoder: the sets are encoded already."""

    global_width = 0

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width


def _times(score: Callable[[int], Tensor], galleries: tuple[int, ...], rounds: int) -> np.ndarray:
    score(galleries[0])
    return np.array([[seconds(lambda n=n: score(n)) for n in galleries] for _ in range(rounds)])


def _flops(score: Callable[[int], Tensor], images: int) -> float:
    with FlopCounterMode(display=False) as counter:
        score(images)
    return counter.get_total_flops() / images


def _row(name: str, cost: Cost, slow: Cost, size: QuerySize, place: int, note: str) -> Measurement:
    ours_R, reference_R = 1e3 * cost.seconds_RS[:, place], 1e3 * slow.seconds_RS[:, place]
    ratio_R = reference_R / ours_R
    return Measurement(
        name=f"query, {size.galleries[place]:,} images: {name}",
        measured="one caption against the gallery; reference: every pair through the cross-modal encoder",
        unit="ms",
        ours=float(np.median(ours_R)),
        reference=float(np.median(reference_R)),
        ratio=float(np.median(ratio_R)),
        spread=(float(ratio_R.min()), float(ratio_R.max())) if len(ratio_R) > 1 else None,
        note=note,
    )
