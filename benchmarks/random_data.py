"""Random tensors, stores and corpora of published sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polypool.infra.registry import RECIPES
from polypool.infra.store import FeatureStore, StoreWriter
from polypool.pipelines.recipes.load import derive
from polypool.tasks.datasets.corpus import Item, write_corpus
from polypool.tasks.run import Run


def whole_sets(batch: int, elements: int, width: int) -> tuple[Tensor, Tensor]:
    """Return sets without pads: `(B, N, D)`, and a mask `(B, N)` that is True throughout; the same at each call."""
    x_BND = torch.randn(batch, elements, width, generator=torch.Generator().manual_seed(0))
    return x_BND, torch.ones(batch, elements, dtype=torch.bool)


def feature_sets(size_S: np.ndarray, *, dim: int) -> Iterator[np.ndarray]:
    """Yield one float16 set `(N, dim)` for each size: parts of a common pool, so that many are made quickly."""
    rng, largest = np.random.default_rng(0), int(size_S.max())
    pool_PD = rng.standard_normal((8 * largest, dim), np.float32).astype(np.float16)
    for size in size_S.tolist():
        start = rng.integers(len(pool_PD) - size + 1)
        yield pool_PD[start : start + size]


def feature_store(
    folder: Path, size_S: np.ndarray, *, dim: int, ids: Sequence[str] = (), statistics: bool = False
) -> FeatureStore:
    """Write a store with a set of each size, by the numbers of their rows or by `ids`, and open it."""
    ids = ids or [*map(str, range(len(size_S)))]
    with StoreWriter(folder, dim=dim, source={"reader": "benchmark"}) as writer:
        for id, x_ND in zip(ids, feature_sets(size_S, dim=dim), strict=True):
            writer.add(id, x_ND)
        writer.close(statistics_of=ids if statistics else ())
    return FeatureStore.open(folder)


def image_run(
    folder: Path, *, images: int, words: int, regions: int, dim: int, test: int = 2, **changes: Any
) -> Run:
    """Write a corpus and a store of `regions` vectors an image to `folder`, and return a run on them.

    Images have five captions of 8 to 16 of `words` words. The run is `coco_region_bigru` but for `changes`.
    """
    rng = np.random.default_rng(0)

    def caption() -> str:
        return " ".join(f"w{word}" for word in rng.integers(words, size=rng.integers(8, 17)))

    splits = ["train"] * images + ["val"] * 2 + ["test"] * test
    items = (
        Item(id=str(number), split=split, captions=tuple(caption() for _ in range(5)))
        for number, split in enumerate(splits)
    )
    write_corpus(folder / "corpus", items, source={"reader": "benchmark"})
    feature_store(folder / "regions", np.full(len(splits), regions), dim=dim)
    return derive(
        RECIPES.get("coco_region_bigru")(),
        task="image_text(dev_protocol='whole')",
        data={"corpus": str(folder / "corpus"), "features": str(folder / "regions")},
        **{"protocol": "whole", **changes},
    )
