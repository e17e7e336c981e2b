"""Ranks of images and captions against one argsort a query, and in chunks that never hold the score matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from benchmarks.measure import Measurement, Scale, Size, apart, by_turns, growth, seconds
from benchmarks.random_data import random_tensors
from polypool.tasks.scoring.evaluation import evaluate_protocol
from polypool.tasks.scoring.metrics import Positives, rank_queries
from polypool.tasks.scoring.protocols import protocol_named
from polypool.tasks.similarities.similarity import Cosine


@dataclass(frozen=True, kw_only=True)
class RankSize(Size):
    """COCO's test split by default: `images` with five captions each; an argsort for `sample` queries a direction."""

    quick: ClassVar = {"images": 1000, "sample": 100, "rounds": 5}
    tiny: ClassVar = {"images": 60, "dim": 8, "sample": 20, "rounds": 3, "chunk_rounds": 1}
    images: int = 5000
    dim: int = 1024
    sample: int = 500
    rounds: int = 5
    chunk_rounds: int = 3
    limit_MB: float = 500.0

    @property
    def captions(self) -> int:
        """Captions of all images."""
        return 5 * self.images


def ranks(scale: Scale = "full") -> Iterator[Measurement]:
    """Measure ranking of a given score matrix: time against numpy, and memory beyond the scores."""
    size = RankSize.of(scale)
    yield _speed(size)
    yield _memory(size)


def ranks_in_chunks(scale: Scale = "full") -> list[Measurement]:
    """Measure ranking from embeddings block by block: time and memory against making the whole matrix first."""
    size = RankSize.of(scale)
    visual_QD, text_GD = embeddings(size)

    def time(work: Callable[[Tensor, Tensor], None]) -> Callable[[int], float]:
        return lambda _: seconds(lambda: work(visual_QD, text_GD))

    times = by_turns(time(in_chunks), time(at_once), rounds=size.chunk_rounds)
    ours, whole = apart(growth, [(embeddings, work, size) for work in (in_chunks, at_once)])
    measured = f"both directions of {size.images:,} x {size.captions:,}, from embeddings of width {size.dim}"
    return [
        Measurement(
            name="ranks in chunks",
            measured=f"time of {measured}",
            unit="s",
            note="Ours: a tile of scores after another, each seen from both sides. Reference: the whole score matrix, "
            "then ranked in either direction.",
            **times.numbers(invert=True),
        ),
        Measurement.of_two(
            ours,
            whole,
            name="chunks: memory",
            measured=f"peak memory beyond the embeddings, {measured}",
            unit="MB",
            target=0.5,
            note=f"Reference: the whole matrix ({size.images * size.captions * 4 / 1e6:,.0f} MB), then ranked.",
        ),
    ]


def _speed(size: RankSize) -> Measurement:
    score_QG, owner_T, rng = scores(size), _owner(size), np.random.default_rng(0)
    image_S = rng.choice(size.images, size.sample, replace=False)
    caption_S = rng.choice(size.captions, size.sample, replace=False)

    def reference(_: int) -> float:
        by_image = seconds(lambda: argsort_images(score_QG, owner_T, image_S))
        by_caption = seconds(lambda: argsort_captions(score_QG, owner_T, caption_S))
        return (by_image * size.images + by_caption * size.captions) / size.sample

    i2t_Q, t2i_G = rank_matrix(torch.from_numpy(score_QG))
    same_S = [i2t_Q[image_S] == argsort_images(score_QG, owner_T, image_S)]
    same_S += [t2i_G[caption_S] == argsort_captions(score_QG, owner_T, caption_S)]
    assert np.mean(same_S) > 0.99, "ranks differ by more than ties explain"
    sides = by_turns(
        lambda _: seconds(lambda: rank_matrix(torch.from_numpy(score_QG))), reference, rounds=size.rounds
    )
    return Measurement(
        name="ranks / argsort",
        measured=f"both directions of {size.images:,} x {size.captions:,} float32 scores",
        unit="s",
        target=5.0,
        note=f"Reference: one numpy argsort a query, measured on {size.sample} queries of each direction and scaled. "
        "Ours uses all of torch's threads, numpy's sort one.",
        **sides.numbers(invert=True),
    )


def _memory(size: RankSize) -> Measurement:
    (peak,) = apart(growth, [(score_tensor, rank_matrix, size)])
    return Measurement.of_two(
        peak,
        size.limit_MB,
        name="ranks: memory",
        measured=f"peak memory beyond the scores, both directions of {size.images:,} x {size.captions:,}",
        unit="MB",
        target=1.0,
        note="Reference: the limit.",
    )


def scores(size: RankSize) -> np.ndarray:
    """Return random scores, filled in place so that making them takes no more memory than they do."""
    score_QG = np.empty((size.images, size.captions), np.float32)
    np.random.default_rng(0).standard_normal(out=score_QG, dtype=np.float32)
    return score_QG


def score_tensor(size: RankSize) -> tuple[Tensor]:
    """Return the scores as what `rank_matrix` takes."""
    return (torch.from_numpy(scores(size)),)


def embeddings(size: RankSize) -> tuple[Tensor, ...]:
    """Return random embeddings of images and captions, of unit length."""
    return random_tensors(*((count, size.dim) for count in (size.images, size.captions)), unit=True)


def rank_matrix(score_QG: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Rank given scores in both directions."""
    images, captions = score_QG.shape
    owner_T = np.repeat(np.arange(images), captions // images)
    i2t = rank_queries(score_QG, Positives.of_images(owner_T, images=images))
    t2i = rank_queries(score_QG.T, Positives.of_images(owner_T, images=images).turned())
    return i2t.rank_Q, t2i.rank_Q


def in_chunks(visual_QD: Tensor, text_GD: Tensor) -> None:
    """Rank from embeddings as evaluation does: a block of scores at a time."""
    owner_T = np.repeat(np.arange(len(visual_QD)), len(text_GD) // len(visual_QD))
    cosine = Cosine()
    score = lambda rows, columns: cosine(visual_QD[rows], text_GD[columns])  # noqa: E731
    evaluate_protocol(protocol_named("whole"), score, owner_T, len(visual_QD))


def at_once(visual_QD: Tensor, text_GD: Tensor) -> None:
    """Rank from embeddings by way of the whole matrix."""
    rank_matrix(Cosine()(visual_QD, text_GD))


def argsort_images(score_QG: np.ndarray, owner_T: np.ndarray, image_S: np.ndarray) -> np.ndarray:
    """Rank each image's best caption by sorting all of them."""
    return np.array([np.argmax(owner_T[np.argsort(score_QG[q])[::-1]] == q) for q in image_S])


def argsort_captions(score_QG: np.ndarray, owner_T: np.ndarray, caption_S: np.ndarray) -> np.ndarray:
    """Rank each caption's image by sorting all of them."""
    return np.array([np.argmax(np.argsort(score_QG[:, g])[::-1] == owner_T[g]) for g in caption_S])


def _owner(size: RankSize) -> np.ndarray:
    return np.repeat(np.arange(size.images), 5)
