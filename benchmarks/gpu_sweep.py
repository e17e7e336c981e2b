"""`python -m benchmarks.gpu_sweep`: a tuned sweep of all aggregators of single vectors on one GPU, with MLflow.

Each aggregator has six tuning trials and five seeds of `coco_mini_dinov2_minilm`, on random data of its size or on
`--data CORPUS FEATURES TEXTS`. It prints rows a minute, and the scores of three aggregators on the GPU and on a CPU. A
row of more than one second gives exit code 1.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

import polypool as pp
from benchmarks.row import RECIPE, write_data
from polypool.infra.errors import InputError
from polypool.infra.process.command import command
from polypool.infra.registry import AGGREGATORS

FULL = {"train": 1_359, "val": 195, "test": 1_064}
TINY = {"train": 140, "val": 8, "test": 8}
CHOICES = ("optim.lr=1e-3,2e-3,4e-3", "optim.weight_decay=0.01,0.1", "aggregator.lr=0.1,0.3,1")
BUDGET, SEEDS = 6, 5
ON_CPU = ("mean", "kmax", "gpo")


def single_vectors() -> list[str]:
    """Return the aggregators that pool one set into one vector of its width, without another input."""
    modules = {name: AGGREGATORS.build(name, 8) for name in AGGREGATORS.built_in()}
    return [
        name
        for name, module in modules.items()
        if module.num_embeddings == 1 and module.context == "none" and not module.takes_global_feature
    ]


def sweep(experiment: str, data: Sequence[str], *words: str, gpu: bool) -> float:
    """Run `polypool sweep`, one trial after another in one process; return the seconds.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    flags = [word for pair in zip(("--corpus", "--features", "--texts"), data, strict=True) for word in pair]
    started = time.perf_counter()
    what = ["--recipes", RECIPE, "--experiment", experiment, *words, "--concurrent", "1", "--no-figures"]
    subprocess.run(
        [sys.executable, "-m", "polypool", "sweep", *what, *flags],
        env=os.environ | ({} if gpu else {"CUDA_VISIBLE_DEVICES": ""}),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - started


def measure(folder: Path, data: Sequence[str], *, quick: bool) -> float:
    """Print rows a minute and the scores; return the seconds of a row after the first."""
    os.environ |= {"POLYPOOL_HOME": str(folder), "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"}
    if not data:
        write_data(folder, TINY if quick else FULL)
        data = [str(folder / part) for part in ("corpus", "cells", "tokens")]
    names, budget, seeds = (ON_CPU[:1], 1, 2) if quick else (single_vectors(), BUDGET, SEEDS)
    first = sweep("first", data, "--aggregators", names[0], "--seeds", "1", gpu=True)
    tuned = "--choose", *CHOICES, "--budget", str(budget), "--seeds", str(seeds)
    took = sweep("gpu", data, "--aggregators", *names, *tuned, gpu=True)
    rows = len(names) * (budget + seeds)
    seconds = (took - first) / (rows - 1)
    print(
        f"{rows} rows of {len(names)} aggregators: {took / 60:.1f} minutes, {60 * rows / took:.0f} rows a minute; "
        f"a row after the first: {seconds:.2f} s",
        flush=True,
    )
    for experiment, gpu in (("same_gpu", True), ("same_cpu", False)):
        sweep(experiment, data, "--aggregators", *ON_CPU[: len(names)], "--seeds", str(seeds), gpu=gpu)
        scores = pp.compare(experiment)[["row", "mean", "deviation", "seeds"]]
        print(f"{'GPU' if gpu else 'CPU'}:\n{scores.to_string(index=False)}", flush=True)
    return seconds


@command
def main() -> None:
    parser = argparse.ArgumentParser(
        description="a tuned sweep of all aggregators of single vectors on one GPU"
    )
    parser.add_argument("--data", nargs=3, default=(), metavar=("CORPUS", "FEATURES", "TEXTS"))
    parser.add_argument("--quick", action="store_true", help="tiny sizes, also without a GPU")
    options = parser.parse_args()
    if not (options.quick or torch.cuda.is_available()):
        raise InputError("torch finds no GPU here; run it on a machine with one, and a torch with CUDA")
    with tempfile.TemporaryDirectory() as folder:
        seconds = measure(Path(folder), options.data, quick=options.quick)
    if seconds > 1 and not options.quick:
        sys.exit(1)


if __name__ == "__main__":
    main()
