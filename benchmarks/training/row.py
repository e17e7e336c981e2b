"""Cost of a row of a comparison, a run from its command to its end, against a plain script that does the same work."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from benchmarks.measure import Measurement, Scale, Size, by_turns, of_children
from benchmarks.random_data import feature_sets, feature_store
from polypool.infra.store.ids import text_id
from polypool.tasks.datasets.corpus import Item, write_corpus

CAPTIONS, CELLS, DIM = 5, 17, 384


@dataclass(frozen=True, kw_only=True)
class RowSize(Size):
    """Images of each split, as in `coco_mini`."""

    tiny: ClassVar = {"train": 64, "val": 8, "test": 8, "rounds": 1}
    train: int = 1_359
    val: int = 195
    test: int = 1_064
    rounds: int = 3


def row(scale: Scale = "full") -> list[Measurement]:
    """Measure the processor time of `polypool train coco_mini_dinov2_minilm --aggregator mean` and of the script."""
    size = RowSize.of(scale)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder, size)
        data = {"corpus": "corpus", "features": "cells", "texts": "tokens"}
        flags = [word for part, of in data.items() for word in (f"--data.{part}", str(folder / of))]
        run = [
            "-m",
            "polypool",
            "train",
            "coco_mini_dinov2_minilm",
            "--aggregator",
            "mean",
            "--cpus",
            "1",
            *flags,
        ]
        whole, fixed = (
            by_turns(
                lambda _, words=ours: cost(words, folder),
                lambda _, words=theirs: cost(words, folder),
                rounds=size.rounds,
            )
            for ours, theirs in (
                (run, ["-m", "benchmarks.training.plain_row", name]),
                ([*run, "--optim.epochs", "0"], ["-c", "import torch, mlflow"]),
            )
        )
    return [
        Measurement(
            name="a row / a plain script",
            measured=f"processor time of a run of 6 epochs on {size.train:,} images of {CELLS} x {DIM}, to its end",
            unit="s",
            goal="at most",
            target=1.1,
            note="The script keeps checkpoints, and has no figures, no record and no per-query results.",
            **whole.numbers(),
        ),
        Measurement(
            name="a row of no epochs / imports",
            measured="processor time of the same without training: read, scored, drawn and recorded",
            unit="s",
            goal="at most",
            target=None,
            note="The imports are those of torch and MLflow.",
            **fixed.numbers(),
        ),
    ]


def write_data(folder: Path, size: RowSize) -> None:
    """Write a corpus with two stores, and the same numbers as the script reads them."""
    counts = {"train": size.train, "val": size.val, "test": size.test}
    split_I = np.repeat([*counts], [*counts.values()])
    texts = [f"{image} {number}" for image in range(len(split_I)) for number in range(CAPTIONS)]
    items = (
        Item(
            id=str(image), split=str(split), captions=tuple(texts[CAPTIONS * image : CAPTIONS * (image + 1)])
        )
        for image, split in enumerate(split_I)
    )
    write_corpus(folder / "corpus", items, source={"reader": "benchmark"})
    cells_I = np.full(len(split_I), CELLS)
    length_T = np.random.default_rng(0).integers(8, 21, size=len(texts))
    feature_store(folder / "cells", cells_I, dim=DIM, statistics=True)
    feature_store(folder / "tokens", length_T, dim=DIM, ids=[*map(text_id, texts)])
    for name, size_S in (("images", cells_I), ("texts", length_T)):
        x_PF = np.concatenate([*feature_sets(size_S, dim=DIM)])
        np.savez(folder / f"{name}.npz", x=x_PF, first=np.concatenate(([0], size_S.cumsum())))
    places = {split: np.flatnonzero(split_I == split) for split in counts}
    np.savez(folder / "splits.npz", image=np.repeat(np.arange(len(split_I)), CAPTIONS), **places)


def cost(words: Sequence[str], folder: Path) -> float:
    """Return the processor time of Python with some arguments, and of all processes that it starts and waits for.

    Raises:
        RuntimeError: it failed; the end of its output is in the message.
    """
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    env |= {"POLYPOOL_HOME": str(folder), "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"}
    before = of_children()
    done = subprocess.run(
        [sys.executable, *words], env=env | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"python {' '.join(words)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return of_children() - before
