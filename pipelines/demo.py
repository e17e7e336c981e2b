"""`python -m pipelines.demo`: the whole way on a corpus made here, from picture files to a comparison.

Renders scenes with captions in COCO's file formats, ingests them, extracts features, trains one Ray job for
each aggregator, and compares the runs. RAY_ADDRESS names the job server of a cluster to use instead of a
private head on this machine.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tyro
from pipelines.scenes import write_scenes

from infra.cluster import private_head
from infra.errors import InputError, command
from infra.paths import home
from infra.registry import AGGREGATORS, RECIPES
from infra.store import FeatureStore
from infra.tracking import tracking_uri

PROJECT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, kw_only=True)
class Options:
    """How large the demo is."""

    images: int = 600
    """Scenes to render."""
    aggregators: tuple[str, ...] = ("mean", "max", "kmax(k=5)", "gpo")
    """One training job for each."""
    epochs: int = 12
    """Epochs of each job."""
    experiment: str = "demo"
    """MLflow experiment of the runs."""


@contextmanager
def job_server() -> Iterator[str]:
    """Yield the address of the cluster that RAY_ADDRESS names, or of a private head."""
    if address := os.environ.get("RAY_ADDRESS"):
        print(f"using the Ray cluster at {address}")
        yield address
        return
    print("starting a private Ray head")
    with private_head() as address:
        yield address


def run(*words: str, env: dict[str, str] | None = None) -> None:
    """Show a command, run it, and stop the demo if it fails."""
    print(f"\n$ {shlex.join(words)}", flush=True)
    tools = str(Path(sys.executable).parent)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(words, cwd=PROJECT, env={**os.environ, **(env or {}), "PATH": path}, check=False)
    if result.returncode:
        raise InputError(f"the command above ended with exit code {result.returncode}; its output says why")


def verb(name: str, *words: str) -> None:
    """Run `python -m pipelines.<name>`."""
    run("python", "-m", f"pipelines.{name}", *words)


def prepare(options: Options) -> None:
    """Make the corpus and its features, unless an earlier demo of this size did."""
    data = RECIPES.get("demo")().data
    corpus, features = home() / data.corpus, home() / data.features
    pictures = corpus.with_name(f"{corpus.name}_pictures")
    try:
        if len(FeatureStore.open(features)) == options.images:
            print(f"{options.images} scenes are there already, in {corpus}")
            return
    except InputError:
        pass
    write_scenes(pictures, images=options.images)
    verb(
        "ingest",
        "karpathy",
        "--json",
        f"{pictures}/dataset_scenes.json",
        "--images",
        str(pictures),
        "--out",
        str(corpus),
    )
    verb("extract", "--corpus", str(corpus), "--backbone", "cells", "--out", str(features))


def submit(address: str, aggregator: str, options: Options) -> None:
    """Train one aggregator as a Ray job and wait for it."""
    env = {"POLYPOOL_HOME": str(home()), "MLFLOW_TRACKING_URI": tracking_uri(home())}
    run(
        *("ray", "job", "submit", "--address", address, "--working-dir", str(PROJECT)),
        *("--runtime-env-json", json.dumps({"env_vars": env}), "--log-style=record", "--"),
        *("python", "-m", "pipelines.train", "demo", "--aggregator", aggregator),
        *("--optim.epochs", str(options.epochs), "--experiment", options.experiment),
        env={"RAY_RUNTIME_ENV_LOG_LEVEL": "WARNING"},
    )


@command
def main() -> None:
    """Run the demo."""
    options, started = (
        tyro.cli(Options, prog="python -m pipelines.demo", description=__doc__),
        time.monotonic(),
    )
    for spec in options.aggregators:
        AGGREGATORS.build(spec, 8)
    prepare(options)
    with job_server() as address:
        for aggregator in options.aggregators:
            submit(address, aggregator, options)
    verb("compare", "--experiment", options.experiment)
    print(f"the demo took {time.monotonic() - started:.0f} seconds")


if __name__ == "__main__":
    main()
