"""Time of a run besides its steps, against an empty Ray Train job, which imports torch on a worker and ends."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.measure import Measurement, Scale, Size, by_turns, elapsed
from benchmarks.random_data import image_run
from polypool.infra.tracking import Tracker, find_runs
from polypool.tasks.run import Run

_SECONDS = 5.0
"""That a run may take besides."""


@dataclass(frozen=True, kw_only=True)
class StartSize(Size):
    """The data of the run, and widths of its model as in `coco_mini`."""

    tiny: ClassVar = {"images": 24, "words": 20, "rounds": 1}
    images: int = 512
    words: int = 3_000
    regions: int = 25
    dim: int = 64
    batch: int = 16
    visual: str = "regions(width=192)"
    text: str = "bigru(width=192, embedding=128, min_count=1)"


def start(scale: Scale = "full") -> list[Measurement]:
    """Measure a run of one epoch, from its command to its end but for its steps, and the empty job."""
    size = StartSize.of(scale)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sizes = {"images": size.images, "words": size.words, "regions": size.regions, "dim": size.dim}
        run = image_run(folder, **sizes, visual=size.visual, text=size.text)
        uri = f"sqlite:///{folder / 'mlflow.db'}"
        env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        env |= {"POLYPOOL_HOME": str(folder), "MLFLOW_TRACKING_URI": uri}

        def trained(_: int) -> float:
            words = ["polypool", "train", run.recipe, *_flags(run, size)]
            seconds = elapsed(lambda: _python(words, env))
            latest, *_ = find_runs(uri, run.experiment)
            return seconds - latest.metrics["time/train_seconds"]

        def empty(number: int) -> float:
            words = ["benchmarks.training.empty_job", str(folder / f"empty{number}")]
            return elapsed(lambda: _python(words, env))

        first = Tracker.start(run.experiment, uri=uri, home=folder, name="none", tags={}, params={})
        first.finish()  # MLflow has made its tables
        sides = by_turns(trained, empty, rounds=size.rounds)
    floor = float(np.median(sides.reference_R))
    return [
        Measurement(
            name="a run but for its steps / an empty Ray Train job",
            measured=f"one epoch of {size.images} images, scored, drawn and recorded, by the clock",
            unit="s",
            goal="at most",
            target=(floor + _SECONDS) / floor,
            note=f"The target is {_SECONDS:g} seconds more than the empty job takes.",
            **sides.numbers(),
        )
    ]


def _flags(run: Run, size: StartSize) -> list[str]:
    """Return the command line of the run, whose recipe says the rest."""
    settings: dict[str, Any] = {
        "task": run.task,
        "protocol": run.protocol,
        "visual": run.visual,
        "text": run.text,
        "data.corpus": run.data.corpus,
        "data.features": run.data.features,
        "optim.epochs": 1,
        "optim.batch": size.batch,
    }
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def _python(words: list[str], env: Mapping[str, str]) -> None:
    """Run a module with its arguments.

    Raises:
        RuntimeError: it failed; the end of what it said is in the message.
    """
    done = subprocess.run(
        [sys.executable, "-m", *words], env=dict(env), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"python -m {words[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
