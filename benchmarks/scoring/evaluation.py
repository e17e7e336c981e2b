"""A whole evaluation from embeddings to metrics, against the matrix product that every evaluation needs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from benchmarks.measure import Measurement, Scale, Size, by_turns, seconds
from benchmarks.random_data import image_run, random_tensors
from polypool.infra.registry import SIMILARITIES, TASKS
from polypool.tasks.image_text import ImageText
from polypool.tasks.models.dual_encoder import SplitEmbeddings

WHAT = {"cosine": "embeddings", "smooth_chamfer": "sets"}


@dataclass(frozen=True, kw_only=True)
class EvaluationSize(Size):
    """COCO's test split, an embedding of width `dim` an image and a caption, or a set of `k` of them."""

    quick: ClassVar = {"protocol": "whole", "images": 500, "rounds": 5}
    tiny: ClassVar = {"protocol": "whole", "images": 12, "dim": 8, "k": 2, "rounds": 1}
    protocol: str = "coco-5k"
    images: int = 5000
    dim: int = 1024
    k: int = 4
    rounds: int = 3

    @property
    def captions(self) -> int:
        """Captions of all images."""
        return 5 * self.images


def evaluation(scale: Scale = "full") -> Iterator[Measurement]:
    """Measure the evaluation of a run of image-text retrieval whose embeddings are ready."""
    size = EvaluationSize.of(scale)
    with tempfile.TemporaryDirectory() as name:
        adapter = random_split(Path(name), size)
        yield _row("evaluation", "cosine", (size.dim,), adapter, size)
        yield _row("evaluation of sets", "smooth_chamfer", (size.k, size.dim), adapter, size)


def random_split(folder: Path, size: EvaluationSize) -> ImageText:
    """Write a corpus with a test split of this size to `folder`, and return the adapter of a run on it."""
    run = image_run(
        folder,
        images=2,
        words=1000,
        regions=1,
        dim=8,
        test=size.images,
        protocol=size.protocol,
        text="bigru(min_count=1)",
    )
    adapter = TASKS.build(run.task, run)
    adapter.data("test")  # read before anything is timed
    return adapter


def _row(
    name: str, similarity: str, shape: tuple[int, ...], adapter: ImageText, size: EvaluationSize
) -> Measurement:
    visual, text = random_tensors(*((count, *shape) for count in (size.images, size.captions)), unit=True)
    score = SplitEmbeddings(visual=visual, text=text, similarity=SIMILARITIES.build(similarity))
    evaluate = partial(adapter.evaluate_scores, score, "test", size.protocol)
    bare = partial(products, visual.reshape(-1, size.dim), text.reshape(-1, size.dim))
    evaluate(), bare()
    sides = by_turns(lambda _: seconds(evaluate), lambda _: seconds(bare), rounds=size.rounds)
    return Measurement(
        name=f"{name} / product",
        measured=(
            f"evaluation of {size.images:,} x {size.captions:,} {WHAT[similarity]} of "
            f"{' x '.join(map(str, shape))} under {size.protocol}, by {similarity}"
        ),
        unit="s",
        goal="at most",
        target=1.5,
        note="Ours: from embeddings to metrics, ranks and recalls of each query, in both directions. Reference: the "
        "products of all vectors and nothing else, a few rows at a time into one buffer.",
        **sides.numbers(),
    )


@torch.inference_mode()
def products(visual_VD: Tensor, text_TD: Tensor, *, held: int = 1 << 25) -> None:
    """Compute the products of all vectors, so many at a time that `held` of them are held, and drop them."""
    buffer_RT = torch.empty(max(1, held // len(text_TD)), len(text_TD))
    for part_RD in visual_VD.split(len(buffer_RT)):
        torch.mm(part_RD, text_TD.T, out=buffer_RT[: len(part_RD)])
