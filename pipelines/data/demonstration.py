"""The demo: rendered corpora, ingested and extracted, and a Ray job that trains aggregators on three tasks."""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from polypool.infra.errors import InputError
from polypool.infra.paths import home
from polypool.infra.process.output import LOG, WITHIN, mode
from polypool.infra.ray import JobServer, private_head
from polypool.infra.registry import AGGREGATORS, RECIPES
from polypool.infra.store import FeatureStore
from polypool.infra.tracking import tracking_uri
from polypool.pipelines.data.rendered import write_moving_scenes, write_scene_questions, write_scenes
from polypool.tasks.run import Data


@cache
def workplace() -> Path:
    """Return the working directory of the demo's commands, which is copied for its Ray job.

    It is this file's checkout. For an installed package it is an empty folder, and the job uses the polypool that is
    installed on its cluster.
    """
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").is_file():
        return checkout
    empty = tempfile.mkdtemp(prefix="polypool-")
    atexit.register(shutil.rmtree, empty, ignore_errors=True)
    return Path(empty)


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """How large the demo is."""

    images: int = 500
    """Scenes to render."""
    videos: int = 300
    """Videos to render."""
    aggregators: tuple[str, ...] = ("slots(k=2, iterations=2, head_width=32)", "gpo", "max", "mean")
    """Trained on each of the three tasks, in this order: the slowest first, so that no core waits at the end."""
    epochs: int = 0
    """Epochs of each job; 0 for the recipes' own."""
    experiment: str = "demo"
    """MLflow experiment of the runs."""


LOCAL: Mapping[str, str] = {"RAY_ADDRESS": "local"}
"""Variables with which a verb starts a private Ray."""


@contextmanager
def job_server() -> Iterator[JobServer]:
    """Yield the job server of the cluster that RAY_ADDRESS names, or of a private head."""
    if address := os.environ.get("RAY_ADDRESS"):
        print(f"using the Ray cluster at {address}")
        yield JobServer(address=address)
        return
    print("starting a private Ray head")
    with private_head() as head:
        yield head


HIDDEN = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+\t(INFO|WARNING) |Running entrypoint for job |"
    r"\S*\((TrainController|PlacementGroupCleaner) pid="
)
"""Ray's own lines in the output of a job, which are not shown."""


def verb(ray: Mapping[str, str], name: str, *options: object) -> None:
    """Print `polypool <name>`, run it on this machine, and stop the demo if it fails."""
    words = ("python", "-m", "polypool", name, *map(str, options))
    print(f"\n$ {shlex.join(words)}", flush=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, **ray, "PATH": path, "POLYPOOL_HOME": str(home()), WITHIN: "demo"}
    if code := subprocess.run(words, cwd=workplace(), env=env).returncode:
        raise InputError(f"the command above ended with exit code {code}; its output says why")


def prepare_images(options: DemoOptions, ray: Mapping[str, str]) -> None:
    """Write the corpus of scenes and its features, unless an earlier demo of this size did."""
    data = RECIPES.get("demo")().data
    pictures, corpus = home() / f"{data.corpus}_pictures", home() / data.corpus
    if pictures.is_dir() and has_features(data, options.images):
        return
    captions = write_scenes(pictures, images=options.images)
    verb(ray, "ingest", "karpathy", "--json", captions, "--images", pictures, "--out", corpus)
    verb(ray, "extract", "--corpus", corpus, "--backbone", "cells", "--out", home() / data.features)


def prepare_videos(options: DemoOptions, ray: Mapping[str, str]) -> None:
    """Write the corpus of moving shapes and its features, unless an earlier demo of this size did."""
    data = RECIPES.get("demo_videos")().data
    if has_features(data, options.videos):
        return
    folder, corpus = home() / f"{data.corpus}_videos", home() / data.corpus
    captions = write_moving_scenes(folder, videos=options.videos)
    verb(ray, "ingest", "msrvtt", "--json", *captions, "--videos", folder / "videos", "--out", corpus)
    backbone = ("--video", "--backbone", "cells(grid=3)", "--pool", "concat")
    verb(ray, "extract", "--corpus", corpus, *backbone, "--out", home() / data.features)


def prepare_questions(options: DemoOptions, ray: Mapping[str, str]) -> None:
    """Write the corpus of questions about the scenes; it shares their features."""
    pictures = home() / f"{RECIPES.get('demo')().data.corpus}_pictures"
    corpus = home() / RECIPES.get("demo_questions")().data.corpus
    questions, annotations = write_scene_questions(pictures, images=options.images)
    files = ("--questions", *questions, "--annotations", *annotations, "--images", pictures / "images")
    verb(ray, "ingest", "vqa2", *files, "--out", corpus)


def has_features(data: Data, size: int) -> bool:
    """Whether features of this many items exist; otherwise the corpus and its features are deleted."""
    try:
        if len(FeatureStore.open(home() / data.features)) == size:
            print(f"the corpus {data.corpus} of {size} exists")
            return True
    except InputError:
        pass
    shutil.rmtree(home() / data.corpus, ignore_errors=True)
    return False


PREPARE = {"demo": prepare_images, "demo_videos": prepare_videos, "demo_questions": prepare_questions}
"""Recipes of the demo, with the functions that write their data."""


CONCURRENT = 8
"""Maximum number of concurrent runs: one a core; on a GPU, which one run leaves mostly idle, all share it."""


def train(server: JobServer, options: DemoOptions) -> None:
    """Train every aggregator on every task and compare them, as one Ray job.

    Raises:
        InputError: the job failed.
    """
    env = {"POLYPOOL_HOME": str(home()), "MLFLOW_TRACKING_URI": tracking_uri(home()), LOG: mode()}
    words = ["python", "-m", "polypool", "sweep", "--experiment", options.experiment, "--cpus", "1"]
    words += ["--concurrent", str(CONCURRENT)]
    words += ["--recipes", *PREPARE, "--aggregators", *options.aggregators]
    words += ["--optim.epochs", str(options.epochs)] if options.epochs else []

    def show(line: str) -> None:
        if not HIDDEN.match(line):
            print(line, flush=True)

    print(f"\nas a Ray job: {shlex.join(words)}", flush=True)
    server.run(words, folder=workplace(), env=env, show=show)


def run_demo(options: DemoOptions) -> None:
    """Render, ingest, extract, train and compare.

    Raises:
        InputError: an unknown aggregator, or a command or job that failed.
    """
    started = time.monotonic()
    for spec in options.aggregators:
        AGGREGATORS.build(spec, 8)
    with job_server() as server:
        for prepare in PREPARE.values():
            prepare(options, server.environment or LOCAL)
        train(server, options)
    print(f"\nthe demo took {time.monotonic() - started:.0f} seconds")
