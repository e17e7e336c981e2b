"""Evaluation of a model that looks at every pair: of all pairs, or of the best of a first pass."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from benchmarks.measure import Measurement, Scale, Size, by_turns, seconds
from benchmarks.random_data import image_run
from polypool.infra.registry import TASKS
from polypool.tasks.image_text import ImageText
from polypool.tasks.models.retrieval_model import RetrievalModel
from polypool.tasks.scoring.protocols import RERANK
from polypool.tasks.scoring.ranking.reranking import PROBES


@dataclass(frozen=True, kw_only=True)
class RerankSize(Size):
    """A test split of `images` with `regions` and 5 captions each; `k` of every query's gallery are scored."""

    quick: ClassVar = {"images": 150, "rounds": 1}
    tiny: ClassVar = {"images": 6, "width": 8, "k": 2, "rounds": 1}
    images: int = 300
    regions: int = 4
    width: int = 16
    k: int = 20
    rounds: int = 3


def reranking(scale: Scale = "full") -> list[Measurement]:
    """Measure the evaluation of a cross-modal model of random weights, from features to metrics."""
    size = RerankSize.of(scale)
    with tempfile.TemporaryDirectory() as name:
        run = image_run(
            Path(name),
            images=2,
            words=1000,
            regions=size.regions,
            dim=8,
            test=size.images,
            visual=f"grid(width={size.width})",
            text=f"bigru(width={size.width}, embedding=8, min_count=1)",
            cross="cross_modal(heads=8)",
            aggregator="score_attention(heads=8)",
        )
        adapter = TASKS.build(run.task, run)
        torch.manual_seed(0)
        model = adapter.model(pretrained=False)
        adapter.data("test")  # read before anything is timed
        exact, few = run.protocol, f"{run.protocol}{RERANK}{size.k}"
        pairs: dict[str, int] = {}

        def timed(protocol: str) -> float:
            return seconds(lambda: pairs.update({protocol: evaluate(adapter, model, protocol)}))

        sides = by_turns(lambda _: timed(few), lambda _: timed(exact), rounds=size.rounds)
    return [
        Measurement(
            name=f"rerank {size.k} / exact",
            measured=(
                f"evaluation of {size.images:,} images and {5 * size.images:,} captions by a cross-modal model, which "
                f"scores {pairs[few]:,} of {pairs[exact]:,} pairs"
            ),
            unit="s",
            note=f"Sets of {size.regions} regions, width {size.width}, random weights. The first pass has {PROBES} "
            "probes of each side. Pairs that are scored grow with images + captions, and all pairs with their product.",
            **sides.numbers(invert=True),
        )
    ]


def evaluate(adapter: ImageText, model: RetrievalModel, protocol: str) -> int:
    """Encode the test split and score it under a protocol, as `evaluate` does; return how many pairs were looked at."""
    score = adapter.scorer(model, "test")
    adapter.evaluate_scores(score, "test", protocol)
    return int(score.known_VT.sum())
