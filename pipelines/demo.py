"""`python -m pipelines.demo`: the whole way on a corpus made here, from picture files to a comparison.

Renders scenes with captions in COCO's file formats, ingests them, extracts features, trains one Ray job for
each aggregator, and compares the runs. RAY_ADDRESS names the job server of a cluster to use instead of a
private head on this machine.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, STDOUT

import tyro

from infra.cluster import JobServer, private_head
from infra.errors import InputError, command
from infra.paths import home
from infra.registry import AGGREGATORS, RECIPES
from infra.store import FeatureStore
from infra.tracking import tracking_uri
from pipelines.scenes import write_scenes

PROJECT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, kw_only=True)
class Options:
    """How large the demo is."""

    images: int = 600
    """Scenes to render."""
    aggregators: tuple[str, ...] = ("mean", "max", "kmax(k=5)", "gpo")
    """One training job for each."""
    epochs: int = 10
    """Epochs of each job."""
    experiment: str = "demo"
    """MLflow experiment of the runs."""


@contextmanager
def job_server() -> Iterator[JobServer]:
    """Yield the address of the cluster that RAY_ADDRESS names, or of a private head."""
    if address := os.environ.get("RAY_ADDRESS"):
        print(f"using the Ray cluster at {address}")
        yield JobServer(address=address)
        return
    print("starting a private Ray head")
    with private_head() as head:
        yield head


RAYS_OWN = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+\t(INFO|SUCC|WARNING) |\S*\((TrainController|PlacementGroupCleaner) pid="
)
"""Lines in which Ray tells of itself; they are left out of what the demo shows."""


def run(*words: str, env: dict[str, str] | None = None) -> None:
    """Show a command, run it, and stop the demo if it fails."""
    print(f"\n$ {shlex.join(words)}", flush=True)
    tools = str(Path(sys.executable).parent)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, **(env or {}), "PATH": path}
    if words[0] != "ray":
        code = subprocess.run(words, cwd=PROJECT, env=env, check=False).returncode
    else:
        with subprocess.Popen(words, cwd=PROJECT, env=env, stdout=PIPE, stderr=STDOUT, text=True) as job:
            for line in job.stdout:
                if line.strip() and not RAYS_OWN.match(line):
                    print(line, end="", flush=True)
        code = job.returncode
    if code:
        raise InputError(f"the command above ended with exit code {code}; its output says why")


def verb(name: str, *words: str) -> None:
    """Run `python -m pipelines.<name>` on this machine."""
    run("python", "-m", f"pipelines.{name}", *words, env={"RAY_ADDRESS": "local"})


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
    shutil.rmtree(corpus, ignore_errors=True)
    write_scenes(pictures, images=options.images)
    captions = str(pictures / "dataset_scenes.json")
    verb("ingest", "karpathy", "--json", captions, "--images", str(pictures), "--out", str(corpus))
    verb("extract", "--corpus", str(corpus), "--backbone", "cells", "--out", str(features))


def submit(server: JobServer, aggregator: str, options: Options) -> None:
    """Train one aggregator as a Ray job and wait for it."""
    env = {"POLYPOOL_HOME": str(home()), "MLFLOW_TRACKING_URI": tracking_uri(home())}
    run(
        *("ray", "job", "submit", "--address", server.address, "--working-dir", str(PROJECT)),
        *("--runtime-env-json", json.dumps({"env_vars": env}), "--log-style=record", "--"),
        *("python", "-m", "pipelines.train", "demo", "--aggregator", aggregator),
        *("--optim.epochs", str(options.epochs), "--experiment", options.experiment),
        env=server.env,
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
    with job_server() as server:
        for aggregator in options.aggregators:
            submit(server, aggregator, options)
    verb("compare", "--experiment", options.experiment)
    print(f"the demo took {time.monotonic() - started:.0f} seconds")


if __name__ == "__main__":
    main()
