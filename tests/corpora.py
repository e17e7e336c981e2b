"""Small corpora on disk, made the way ingest and extract make them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from infra.store import StoreWriter
from pipelines.config import Data, Optim, Run
from tasks.datasets.corpus import Item, write_corpus

NOUNS = ["dog", "cat", "car", "tree", "boat", "bird", "house", "horse"]


def make_corpus(
    folder: Path,
    *,
    train: int = 48,
    val: int = 16,
    test: int = 20,
    dim: int = 10,
    seed: int = 0,
    images: Path | None = None,
) -> Run:
    """Write a corpus whose images show what their captions name, and return a run on it.

    Where a folder is given, item i is said to be the picture `i.png` in it.

    Each image shows two nouns: every noun is a fixed direction, and an image's set holds both with noise.
    """
    rng = np.random.default_rng(seed)
    look = rng.normal(size=(len(NOUNS), dim))
    items, splits = [], ["train"] * train + ["val"] * val + ["test"] * test
    with StoreWriter(folder / "features", dim=dim, dtype="float32", source={"made": "by a test"}) as writer:
        for i, split in enumerate(splits):
            a, b = rng.choice(len(NOUNS), 2, replace=False)
            shown = look[[a, b, a, b][: rng.integers(2, 5)]]
            writer.add(str(i), (shown + 0.1 * rng.normal(size=shown.shape)).astype(np.float32))
            texts = (
                f"a {NOUNS[a]} and a {NOUNS[b]}",
                f"the {NOUNS[b]} beside the {NOUNS[a]}",
                f"one {NOUNS[a]} , {NOUNS[b]}",
            )
            path = f"{i}.png" if images else ""
            items.append(Item(id=str(i), split=split, captions=texts, path=path))
        writer.close(statistics_of=[str(i) for i in range(train)])
    write_corpus(folder / "corpus", items, source={"made": "by a test"}, images=str(images or ""))
    if images:
        images.mkdir(exist_ok=True)
    return Run(
        recipe="tiny",
        data=Data(
            dataset="tiny",
            corpus=str(folder / "corpus"),
            features=str(folder / "features"),
            captions=2,
            visual_augment="drop(p=0.2)",
            text_augment="mask_replace_delete(p=0.2)",
        ),
        visual="regions(width=16, standardise=True)",
        text="bigru(width=16, embedding=8, min_count=1)",
        protocol="whole",
        aggregator="mean",
        objective="infonce",
        optim=Optim(epochs=6, batch=16, lr=2e-2, schedule="cosine"),
        log_every=2,
        retries=0,
    )
