"""`compare` over thousands of runs, against MLflow's client, which reads them one by one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from benchmarks.comparing.made_up_runs import EXPERIMENT, PROTOCOL, make_experiment
from benchmarks.measure import Measurement, Scale, Size, by_turns, of_children, processor_seconds
from polypool.infra.tracking.location import connect

if TYPE_CHECKING:
    from mlflow import MlflowClient


@dataclass(frozen=True, kw_only=True)
class CompareSize(Size):
    """So many runs in rows of some seeds, and how many of them the reference reads."""

    tiny: ClassVar = {"runs": 6, "rows": 2, "images": 8, "sample": 2, "rounds": 1}
    runs: int = 2_000
    rows: int = 20
    images: int = 1_000
    captions: int = 2
    sample: int = 200
    limit: float = 5.0  # seconds


def comparing(scale: Scale = "full") -> list[Measurement]:
    """Measure the verb from its command to its end, and MLflow's client on some of the runs."""
    size = CompareSize.of(scale)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        uri = make_experiment(
            home, runs=size.runs, rows=size.rows, images=size.images, captions=size.captions
        )
        clock: list[float] = []
        client = connect(uri)

        def ours(_: int) -> float:
            before, started = of_children(), time.perf_counter()
            compare(home, uri)
            clock.append(time.perf_counter() - started)
            return of_children() - before

        def reference(number: int) -> float:
            taken = processor_seconds(lambda: one_by_one(client, size.sample, home / str(number)))
            return taken * size.runs / size.sample

        times = by_turns(ours, reference, rounds=size.rounds)
    measured = (
        f"{size.runs:,} runs of {size.images:,} images in {size.rows} rows: tables, figures, a run of its own"
    )
    return [
        Measurement(
            name="compare / one by one",
            measured=f"processor time of {measured}",
            unit="s",
            target=5.0,
            note=f"Reference: MLflow's client reads the record and the queries of {size.sample:,} runs, and no more; "
            "scaled to all of them.",
            **times.numbers(invert=True),
        ),
        Measurement.of_two(
            float(np.median(clock)),
            size.limit,
            name="compare: time",
            measured=f"by the clock, {measured}",
            unit="s",
            target=1.0,
            note="Reference: the limit.",
        ),
    ]


def one_by_one(client: MlflowClient, sample: int, folder: Path) -> list[np.ndarray]:
    """Return the scores of each of the latest runs, whose files are copied to a folder."""
    experiment = client.get_experiment_by_name(EXPERIMENT).experiment_id
    found = client.search_runs([experiment], "tags.kind = 'train'", max_results=sample)
    read = []
    for run in found:
        id = client.get_run(run.info.run_id).info.run_id
        into = folder / id
        into.mkdir(parents=True)
        for kind in ("json", "npz"):
            path = client.download_artifacts(id, f"per_query/{PROTOCOL}.{kind}", str(into))
        with np.load(path) as arrays:
            read.append(np.stack([arrays[f"i2t_R{k}"] for k in (1, 5, 10)]).mean(axis=0))
            _ = [arrays[name] for name in arrays if name.startswith("t2i_R") or name.endswith("_id")]
    return read


def compare(home: Path, uri: str) -> None:
    """Give the command.

    Raises:
        RuntimeError: it failed; the end of what it said is in the message.
    """
    words = [sys.executable, "-m", "polypool", "compare", "--experiment", EXPERIMENT]
    env = {**os.environ, "POLYPOOL_HOME": str(home), "MLFLOW_TRACKING_URI": uri}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"compare ended with {done.returncode}: {done.stderr[-2000:]}")
