"""ADOPT against InfoNCE, and smooth-Chamfer similarity against the matrix product under it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from infra.registry import OBJECTIVES, SIMILARITIES
from pipelines.benchmarks.measure import apart, by_turns, memory, seconds
from pipelines.benchmarks.row import Row


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch of pairs; `steps` of them are timed in a round."""

    size: int = 1024
    dim: int = 1024
    steps: int = 5
    rounds: int = 11


@dataclass(frozen=True, kw_only=True)
class Sets:
    """Sets of `k` vectors of COCO's test split; the times are those of `queries` images, memory that of all."""

    images: int = 5000
    captions: int = 25_000
    queries: int = 1000
    k: int = 4
    dim: int = 1024
    rounds: int = 3
    limit_MB: float = 1000.0


QUICK_BATCH = Batch(size=16, dim=8, steps=1, rounds=3)
QUICK_SETS = Sets(images=12, captions=30, queries=6, k=2, dim=8, rounds=3)


def adopt(*, quick: bool = False) -> list[Row]:
    """Measure a step's similarities, loss and gradient of embeddings, early in training, when K is large."""
    batch = QUICK_BATCH if quick else Batch()
    generator = torch.Generator().manual_seed(0)
    embedding_BD = [
        normalize(torch.randn(batch.size, batch.dim, generator=generator), dim=-1).requires_grad_()
        for _ in "vt"
    ]
    sides = by_turns(
        _steps("adopt", embedding_BD, batch), _steps("infonce", embedding_BD, batch), rounds=batch.rounds
    )
    return [
        Row(
            name="adopt / infonce",
            measured=f"product of {batch.size} x {batch.size} embeddings of width {batch.dim}, loss, and gradient",
            unit="ms",
            goal="at most",
            target=1.2,
            note="Random embeddings: about half of all negatives are chosen.",
            **sides.numbers(),
        )
    ]


def _steps(spec: str, embedding_BD: list[Tensor], batch: Batch) -> Callable[[int], float]:
    objective = OBJECTIVES.build(spec)
    row_B = torch.arange(batch.size)
    positive_BB = torch.eye(batch.size, dtype=torch.bool)

    def step() -> None:
        visual_BD, text_BD = embedding_BD
        loss = objective(visual_BD @ text_BD.T, row_B, positive_BB, epoch=1.0)["loss"]
        torch.autograd.grad(loss, embedding_BD)

    step()
    return lambda _: 1e3 * seconds(lambda: [step() for _ in range(batch.steps)]) / batch.steps


def smooth_chamfer(*, quick: bool = False) -> list[Row]:
    """Measure the scores of a test split: time against the product alone, and memory beyond embeddings and scores."""
    size = QUICK_SETS if quick else Sets()
    visual_QKD, text_GKD = sets(size)
    some_QKD = visual_QKD[: size.queries]
    with torch.inference_mode():
        sides = by_turns(
            lambda _: seconds(lambda: score(some_QKD, text_GKD)),
            lambda _: seconds(lambda: product(some_QKD, text_GKD)),
            rounds=size.rounds,
        )
    (peak,) = apart(peak_memory, [(size,)])
    shape = f"sets of {size.k} x {size.dim} float32"
    return [
        Row(
            name="smooth_chamfer / product",
            measured=f"scores of {size.queries:,} x {size.captions:,} {shape}",
            unit="s",
            goal="at most",
            target=1.3,
            note=f"Reference: the products of all elements, {256 * size.k:,} rows at a time into one buffer.",
            **sides.numbers(),
        ),
        Row(
            name="smooth_chamfer: memory",
            measured=f"peak memory beyond embeddings and scores, {size.images:,} x {size.captions:,} {shape}",
            unit="MB",
            ours=peak,
            reference=size.limit_MB,
            ratio=peak / size.limit_MB,
            goal="at most",
            target=1.0,
            note="Reference: the limit.",
        ),
    ]


def sets(size: Sets) -> tuple[Tensor, Tensor]:
    """Return random sets of images and captions, of unit vectors."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((count, size.k, size.dim) for count in (size.images, size.captions))
    visual_QKD, text_GKD = (torch.randn(shape, generator=generator) for shape in shapes)
    for x_BKD in (visual_QKD, text_GKD):
        x_BKD /= x_BKD.norm(dim=-1, keepdim=True)  # in place: the peak of memory is not to be reached here
    return visual_QKD, text_GKD


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


def peak_memory(size: Sets) -> float:
    """Return by how much the peak of memory exceeds the embeddings and the scores, in MB."""
    visual_QKD, text_GKD = sets(size)
    before = memory()["VmRSS"]
    with torch.inference_mode():
        sim_QG = score(visual_QKD, text_GKD)
    return max(0.0, memory()["VmHWM"] - before - sim_QG.nbytes / 1e6)
