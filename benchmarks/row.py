"""A row of a comparison, and a sweep of several, from command to exit, against a plain script per row.

Measures the processor time of all processes. The script (`benchmarks.plain_row`) trains the same model on the same
numbers, without a registry, a store, a log, figures or a restart.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.random_data import feature_sets, feature_store
from benchmarks.side_by_side import compare, run
from polypool.infra.store.feature_store import text_id
from polypool.tasks.datasets.corpus import Item, write_corpus

CAPTIONS, CELLS, DIM, SEEDS = 5, 17, 384, 3
RECIPE = "coco_mini_dinov2_minilm"


def write_data(folder: Path, counts: dict[str, int]) -> None:
    """Write a corpus with two stores, and the same features in the files of the plain script.

    `counts` has the number of images of each split. A caption has some vectors of its image.
    """
    split_I = np.repeat([*counts], [*counts.values()])
    texts = [f"{image} {number}" for image in range(len(split_I)) for number in range(CAPTIONS)]
    items = (
        Item(id=str(image), split=str(split), captions=tuple(texts[CAPTIONS * image :][:CAPTIONS]))
        for image, split in enumerate(split_I)
    )
    write_corpus(folder / "corpus", items, source={"reader": "benchmark"})
    cells_I = np.full(len(split_I), CELLS)
    length_T = np.random.default_rng(0).integers(8, 21, size=len(texts))
    feature_store(folder / "cells", cells_I, dim=DIM, statistics=True)
    image_I, image_T = np.arange(len(cells_I)), np.repeat(np.arange(len(cells_I)), CAPTIONS)
    feature_store(folder / "tokens", length_T, dim=DIM, ids=[*map(text_id, texts)], of_S=image_T)
    for name, size_S, of_S in (("images", cells_I, image_I), ("texts", length_T, image_T)):
        x_PF = np.concatenate([*feature_sets(size_S, dim=DIM, of_S=of_S)])
        np.savez(folder / f"{name}.npz", x=x_PF, first=np.concatenate(([0], size_S.cumsum())))
    places = {split: np.flatnonzero(split_I == split) for split in counts}
    np.savez(folder / "splits.npz", image=image_T, **places)


def cost(words: Sequence[str], folder: Path, *, times: int = 1) -> float:
    """Return the processor seconds of running Python `times` times with some arguments, child processes included.

    Raises:
        RuntimeError: it failed; the message has the end of its standard error.
    """
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    env |= {"POLYPOOL_HOME": str(folder), "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(times):
        done = subprocess.run(
            [sys.executable, *words], env=env | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(
                f"python {' '.join(words)} ended with {done.returncode}: {done.stderr[-2000:]}"
            )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(*, quick: bool = False) -> None:
    counts = dict(zip(("train", "val", "test"), (140, 8, 8) if quick else (1_359, 195, 1_064), strict=True))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder, counts)
        data = {"corpus": "corpus", "features": "cells", "texts": "tokens"}
        flags = [
            "--cpus",
            "1",
            *(word for part, of in data.items() for word in (f"--data.{part}", f"{folder / of}")),
        ]
        train = ["-m", "polypool", "train", RECIPE, "--aggregator", "mean", *flags]
        plain = ["-m", "benchmarks.plain_row", name]
        compare(
            f"a row / a plain script, {counts['train']:,} images",
            lambda _: cost(train, folder),
            lambda _: cost(plain, folder),
            rounds=1 if quick else 3,
            unit="s",
        )
        if quick:
            return
        sweep = [
            "-m",
            "polypool",
            "sweep",
            "--recipes",
            RECIPE,
            "--aggregators",
            "mean",
            "--seeds",
            str(SEEDS),
        ]
        compare(
            f"a sweep of {SEEDS} rows / as many plain scripts",
            lambda number: cost([*sweep, *flags, "--experiment", f"sweep{number}"], folder),
            lambda _: cost(plain, folder, times=SEEDS),
            rounds=3,
            unit="s",
        )


if __name__ == "__main__":
    run(main)
