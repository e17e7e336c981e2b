"""ADOPT against InfoNCE, and smooth-Chamfer similarity against the matrix product under it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from benchmarks.measure import Measurement, Scale, Size, apart, by_turns, growth, seconds
from benchmarks.random_data import random_tensors
from polypool.infra.registry import OBJECTIVES, SIMILARITIES
from polypool.tasks.objectives.objective import batch_positives


@dataclass(frozen=True, kw_only=True)
class AdoptSize(Size):
    """Pairs of a `batch`; `steps` of them are timed in a round."""

    quick: ClassVar = {"steps": 1, "rounds": 9}
    tiny: ClassVar = {"batch": 16, "dim": 8, "steps": 1, "rounds": 3}
    batch: int = 1024
    dim: int = 1024
    steps: int = 5
    rounds: int = 11


@dataclass(frozen=True, kw_only=True)
class ChamferSize(Size):
    """Sets of `k` vectors of COCO's test split; the times are those of `queries` images, memory that of all."""

    tiny: ClassVar = {"images": 12, "captions": 30, "queries": 6, "k": 2, "dim": 8, "rounds": 3}
    images: int = 5000
    captions: int = 25_000
    queries: int = 1000
    k: int = 4
    dim: int = 1024
    limit_MB: float = 1000.0


def adopt(scale: Scale = "full") -> list[Measurement]:
    """Measure a step's similarities, loss and gradient of embeddings, early in training, when K is large."""
    size = AdoptSize.of(scale)
    embeddings = [x_BD.requires_grad_() for x_BD in random_tensors(*[(size.batch, size.dim)] * 2, unit=True)]
    sides = by_turns(
        _steps("adopt", embeddings, size), _steps("infonce", embeddings, size), rounds=size.rounds
    )
    return [
        Measurement(
            name="adopt / infonce",
            measured=f"product of {size.batch} x {size.batch} embeddings of width {size.dim}, loss, and gradient",
            unit="ms",
            goal="at most",
            target=1.5,
            note="Random embeddings: about half of all negatives are chosen.",
            **sides.numbers(),
        )
    ]


def _steps(spec: str, embeddings: list[Tensor], size: AdoptSize) -> Callable[[int], float]:
    objective = OBJECTIVES.build(spec)
    row_B = torch.arange(size.batch)
    positive_BB = batch_positives(row_B, row_B)

    def step() -> None:
        visual_BD, text_BD = embeddings
        loss = objective(visual_BD @ text_BD.T, row_B, positive_BB, epoch=1.0)["loss"]
        torch.autograd.grad(loss, embeddings)

    step()
    return lambda _: 1e3 * seconds(lambda: [step() for _ in range(size.steps)]) / size.steps


def smooth_chamfer(scale: Scale = "full") -> list[Measurement]:
    """Measure the scores of a test split: time against the product alone, and memory beyond embeddings and scores."""
    size = ChamferSize.of(scale)
    visual_QKD, text_GKD = sets(size)
    some_QKD = visual_QKD[: size.queries]
    with torch.inference_mode():
        sides = by_turns(
            lambda _: seconds(lambda: score(some_QKD, text_GKD)),
            lambda _: seconds(lambda: product(some_QKD, text_GKD)),
            rounds=size.rounds,
        )
    (grown,) = apart(growth, [(sets, score, size)])
    peak = max(0.0, grown - size.images * size.captions * 4 / 1e6)
    shape = f"sets of {size.k} x {size.dim} float32"
    return [
        Measurement(
            name="smooth_chamfer / product",
            measured=f"scores of {size.queries:,} x {size.captions:,} {shape}",
            unit="s",
            goal="at most",
            target=1.3,
            note=f"Reference: the products of all elements, {256 * size.k:,} rows at a time into one buffer.",
            **sides.numbers(),
        ),
        Measurement.of_two(
            peak,
            size.limit_MB,
            name="smooth_chamfer: memory",
            measured=f"peak memory beyond embeddings and scores, {size.images:,} x {size.captions:,} {shape}",
            unit="MB",
            target=1.0,
            note="Reference: the limit.",
        ),
    ]


def sets(size: ChamferSize) -> tuple[Tensor, ...]:
    """Return random sets of images and captions, of unit vectors."""
    return random_tensors(*((count, size.k, size.dim) for count in (size.images, size.captions)), unit=True)


def score(visual_QKD: Tensor, text_GKD: Tensor) -> Tensor:
    """Return the similarities."""
    return SIMILARITIES.build("smooth_chamfer(alpha=16)")(visual_QKD, text_GKD)


def product(visual_QKD: Tensor, text_GKD: Tensor, *, rows: int = 256) -> None:
    """Compute the products of all elements and drop them."""
    text_VD = text_GKD.flatten(0, 1)
    buffer = torch.empty(rows * visual_QKD.shape[1], len(text_VD))
    for part_QKD in visual_QKD.split(rows):
        part_VD = part_QKD.flatten(0, 1)
        torch.mm(part_VD, text_VD.T, out=buffer[: len(part_VD)])
