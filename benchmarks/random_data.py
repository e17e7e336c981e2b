"""Random tensors, stores and corpora of published sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from polypool.infra.registry import RECIPES
from polypool.infra.store import FeatureStore, StoreWriter
from polypool.pipelines.recipes.load import derive
from polypool.tasks.datasets.corpus import Item, write_corpus
from polypool.tasks.run import Run


def random_tensors(*shapes: tuple[int, ...], unit: bool = False) -> tuple[Tensor, ...]:
    """Return float32 tensors, the same at each call; vectors along the last axis have length 1 where `unit`."""
    generator = torch.Generator().manual_seed(0)
    tensors = tuple(torch.randn(shape, generator=generator) for shape in shapes)
    for x in tensors if unit else ():
        x /= x.norm(dim=-1, keepdim=True)  # in place: the peak of memory is not to be reached here
    return tensors


def whole_sets(batch: int, elements: int, width: int) -> tuple[Tensor, Tensor]:
    """Return sets without pads: `(B, N, D)`, and a mask `(B, N)` that is True throughout."""
    (x_BND,) = random_tensors((batch, elements, width))
    return x_BND, torch.ones(batch, elements, dtype=torch.bool)


def feature_sets(size_S: np.ndarray, *, dim: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Yield one float16 set `(N, dim)` for each size: parts of a common pool, so that many are made quickly."""
    rng, largest = np.random.default_rng(seed), int(size_S.max())
    pool_PD = rng.standard_normal((8 * largest, dim), np.float32).astype(np.float16)
    for size in size_S.tolist():
        start = rng.integers(len(pool_PD) - size + 1)
        yield pool_PD[start : start + size]


def feature_store(
    folder: Path, size_S: np.ndarray, *, dim: int, ids: Sequence[str] = (), statistics: bool = False
) -> FeatureStore:
    """Write a store with a set of each size, and open it.

    Args:
        folder: of the store.
        size_S: vectors of each set.
        dim: of the vectors.
        ids: of the sets; if none, the numbers of their rows.
        statistics: whether to keep the mean and deviation of all.
    """
    sets, ids = feature_sets(size_S, dim=dim), ids or [*map(str, range(len(size_S)))]
    with StoreWriter(folder, dim=dim, source={"reader": "benchmark"}) as writer:
        for id, x_ND in zip(
            ids, tqdm(sets, desc="store", total=len(size_S), leave=False, delay=2), strict=True
        ):
            writer.add(id, x_ND)
        writer.close(statistics_of=ids if statistics else ())
    return FeatureStore.open(folder)


def caption_corpus(
    folder: Path, *, images: int, words: int, captions: int = 5, val: int = 2, test: int = 2
) -> None:
    """Write a corpus of `images` images for training, `val` for validation and `test` for tests.

    Each has captions of 8 to 16 of `words` words.
    """
    rng = np.random.default_rng(0)

    def caption() -> str:
        return " ".join(f"w{word}" for word in rng.integers(words, size=rng.integers(8, 17)))

    items = (
        Item(id=str(number), split=split, captions=tuple(caption() for _ in range(captions)))
        for number, split in enumerate(["train"] * images + ["val"] * val + ["test"] * test)
    )
    write_corpus(folder, items, source={"reader": "benchmark"})


def image_run(
    folder: Path, *, images: int, words: int, regions: int, dim: int, test: int = 2, **changes: Any
) -> Run:
    """Write a corpus and a store of `regions` vectors an image to `folder`, and return a run on them.

    It is `coco_region_bigru` but for `changes`, settings of a run.
    """
    caption_corpus(folder / "corpus", images=images, words=words, test=test)
    feature_store(folder / "regions", np.full(images + 2 + test, regions), dim=dim)
    return derive(
        RECIPES.get("coco_region_bigru")(),
        task="image_text(dev_protocol='whole')",
        data={"corpus": str(folder / "corpus"), "features": str(folder / "regions")},
        **{"protocol": "whole", **changes},
    )
