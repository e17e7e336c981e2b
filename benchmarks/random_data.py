"""Random tensors, stores and corpora of published sizes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polypool.infra.registry import RECIPES
from polypool.infra.store import FeatureStore, StoreWriter
from polypool.pipelines.recipes.load import derive
from polypool.tasks.datasets.corpus import Item, Question, write_corpus, write_questions
from polypool.tasks.run import Run

_POOL = 1024
"""Number of vectors at which a set can start."""


def whole_sets(batch: int, elements: int, width: int) -> tuple[Tensor, Tensor]:
    """Return sets without pads, `(B, N, D)`, and a mask `(B, N)` of True; the same at each call."""
    x_BND = torch.randn(batch, elements, width, generator=torch.Generator().manual_seed(0))
    return x_BND, torch.ones(batch, elements, dtype=torch.bool)


def feature_sets(size_S: np.ndarray, *, dim: int, of_S: np.ndarray | None = None) -> Iterator[np.ndarray]:
    """Yield one float16 set `(N, dim)` for each size: parts of a common pool, so that many are made quickly.

    Sets with the same number in `of_S` start at the same vector; by default each set has its own start.
    """
    rng, largest = np.random.default_rng(0), int(size_S.max())
    of_S = np.arange(len(size_S)) if of_S is None else of_S
    pool_PD = rng.standard_normal((_POOL + largest, dim), np.float32).astype(np.float16)
    start_I = rng.integers(_POOL, size=int(of_S.max()) + 1)
    for size, start in zip(size_S.tolist(), start_I[of_S].tolist(), strict=True):
        yield pool_PD[start : start + size]


def feature_store(
    folder: Path,
    size_S: np.ndarray,
    *,
    dim: int,
    ids: Sequence[str] = (),
    statistics: bool = False,
    of_S: np.ndarray | None = None,
) -> FeatureStore:
    """Write the sets of `feature_sets` under `ids` (default: their numbers), and open the store."""
    ids = ids or [*map(str, range(len(size_S)))]
    with StoreWriter(folder, dim=dim, source={"reader": "benchmark"}) as writer:
        for id, x_ND in zip(ids, feature_sets(size_S, dim=dim, of_S=of_S), strict=True):
            writer.add(id, x_ND)
        writer.close(statistics_of=ids if statistics else ())
    return FeatureStore.open(folder)


def sentences(words: int) -> Callable[[], str]:
    """Return a function that makes sentences of 8 to 16 of `words` words."""
    rng = np.random.default_rng(0)
    return lambda: " ".join(f"w{word}" for word in rng.integers(words, size=rng.integers(8, 17)))


def image_run(
    folder: Path, *, images: int, words: int, regions: int, dim: int, test: int = 2, **changes: Any
) -> Run:
    """Write a corpus and a store of `regions` vectors an image to `folder`, and return a run on them.

    Images have five captions of 8 to 16 of `words` words. The run is `coco_region_bigru` with `changes`.
    """
    sentence = sentences(words)
    splits = ["train"] * images + ["val"] * 2 + ["test"] * test
    items = (
        Item(id=str(number), split=split, captions=tuple(sentence() for _ in range(5)))
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


def question_run(
    folder: Path, *, questions: int, regions: int, dim: int, answers: int, **changes: Any
) -> Run:
    """Write questions about as many images, with ten of `answers` answers each; return `vqa2_scoreattn_k5` on them."""
    rng, sentence = np.random.default_rng(0), sentences(words=10_000)
    splits = ["train"] * questions + ["val"] * 2 + ["test"] * 2
    rows = (
        Question(
            id=str(number),
            split=split,
            image_id=str(number),
            question=sentence(),
            answer_type="other",
            answers=tuple(f"a{answer}" for answer in rng.integers(answers, size=10)),
            label="a0",
        )
        for number, split in enumerate(splits)
    )
    write_questions(folder / "questions", rows, source={"reader": "benchmark"})
    feature_store(folder / "regions", np.full(len(splits), regions), dim=dim)
    return derive(
        RECIPES.get("vqa2_scoreattn_k5")(),
        task="vqa(min_count=1)",
        data={
            "corpus": str(folder / "questions"),
            "features": str(folder / "regions"),
            "extractor": "",
        },
        **changes,
    )


def video_run(folder: Path, *, videos: int, frames: int, dim: int, **changes: Any) -> Run:
    """Write videos with 20 captions each and their role graphs, of two verbs and three nouns; return `msrvtt_hgr`."""
    sentence = sentences(words=10_000)
    splits = ["train"] * videos + ["val"] * 2 + ["test"] * 2
    captions = [tuple(sentence() for _ in range(20)) for _ in splits]
    roles = [(1, "V", 1), (2, "ARG0", 0), (3, "ARG1", 2), (4, "V", 4), (5, "ARG1", 5)]
    nodes = {"0": {"role": "ROOT", "spans": [0]}}
    nodes |= {str(number): {"role": role, "spans": [word]} for number, role, word in roles}
    graph = [nodes, [["1", "2", "ARG0"], ["1", "3", "ARG1"], ["4", "5", "ARG1"]]]
    graphs = folder / "graphs.json"
    graphs.write_text(json.dumps({text: graph for texts in captions for text in texts}))
    items = (
        Item(id=str(number), split=split, captions=texts)
        for number, (split, texts) in enumerate(zip(splits, captions, strict=True))
    )
    write_corpus(folder / "videos", items, source={"reader": "benchmark"})
    feature_store(folder / "frames", np.full(len(splits), frames), dim=dim)
    return derive(
        RECIPES.get("msrvtt_hgr")(),
        task="video_text(dev_protocol='whole')",
        protocol="whole",
        model=f"hgr(graphs={str(graphs)!r})",
        data={"corpus": str(folder / "videos"), "features": str(folder / "frames"), "extractor": ""},
        **changes,
    )
