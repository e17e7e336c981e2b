"""The experiment of table 11 of VSE-infinity: designs of GPO learn pooling patterns, beside the published errors."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from benchmarks.gpo_patterns.patterns import PATTERNS, learn, rmse
from benchmarks.gpo_patterns.report import FIGURE, Results, draw
from polypool.aggregators.ranks.gpo import GPO
from polypool.infra.paths import home
from polypool.infra.ray.session import local_cores
from polypool.infra.registry import AGGREGATORS
from polypool.infra.tracking import Tracker, tracking_uri

SIZES = {"seen": range(20, 101), "smaller": range(10, 20), "larger": range(101, 121)}


@dataclass(frozen=True)
class Design:
    """A design of GPO, and its published errors: sizes by patterns, in the orders of `SIZES` and `PATTERNS`."""

    spec: str
    published: tuple[tuple[float, ...], ...]


OURS = "sinusoids + BiGRU"
"""The design of the main paper."""
DESIGNS = {
    "index + interpolation": Design(
        "gpo(decoder=interpolate)",
        (
            (0.000, 0.065, 0.030, 0.011, 0.004),
            (0.000, 0.017, 0.141, 0.039, 0.016),
            (0.000, 0.070, 0.014, 0.005, 0.002),
        ),
    ),
    "sinusoids + MLP": Design(
        "gpo(decoder=mlp)",
        (
            (0.012, 0.003, 0.047, 0.032, 0.022),
            (0.054, 0.003, 0.093, 0.096, 0.065),
            (0.006, 0.003, 0.030, 0.026, 0.028),
        ),
    ),
    "index + BiGRU": Design(
        "gpo(encoding=index)",
        (
            (0.002, 0.002, 0.026, 0.011, 0.008),
            (0.006, 0.004, 0.052, 0.049, 0.015),
            (0.003, 0.001, 0.018, 0.007, 0.005),
        ),
    ),
    OURS: Design(
        "gpo",
        (
            (0.000, 0.005, 0.010, 0.006, 0.000),
            (0.002, 0.010, 0.031, 0.046, 0.005),
            (0.000, 0.004, 0.007, 0.004, 0.001),
        ),
    ),
}
Key = tuple[str, str, int]
"""Design, pattern and seed."""


def train(designs: Mapping[str, Design], *, seeds: int, steps: int) -> dict[Key, GPO]:
    """Train every design on every pattern, some at a time, and return the generators."""
    jobs = list(itertools.product(designs, PATTERNS, range(seeds)))
    generators = {}
    with torch.random.fork_rng(devices=[]):
        for design, pattern, seed in jobs:
            torch.manual_seed(seed)
            generators[design, pattern, seed] = AGGREGATORS.build(designs[design].spec, 1)

    def run(job: Key) -> None:
        learn(generators[job], job[1], sizes=SIZES["seen"], steps=steps, seed=job[2])

    # a thread each: kernels this small lose more than they win by sharing themselves out
    with ThreadPoolExecutor(local_cores(), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for _ in tqdm(pool.map(run, jobs), total=len(jobs), desc="generators"):
            pass
    return generators


def score(designs: Mapping[str, Design], generators: Mapping[Key, GPO]) -> Results:
    """Return the errors of trained generators beside the published ones."""
    seeds = sorted({seed for _, _, seed in generators})
    rmse_DZPR = [
        [
            [
                [rmse(generators[name, pattern, seed], pattern, sizes=span) for seed in seeds]
                for pattern in PATTERNS
            ]
            for span in SIZES.values()
        ]
        for name in designs
    ]
    return Results(
        designs=tuple(designs),
        sizes=SIZES,
        patterns=tuple(PATTERNS),
        rmse_DZPR=np.array(rmse_DZPR),
        published_DZP=np.array([design.published for design in designs.values()]),
    )


def track(
    results: Results, text: str, generators: Mapping[Key, GPO], *, experiment: str, params: Mapping[str, Any]
) -> Tracker:
    """Keep numbers, table and figure in a finished run of an experiment, with these parameters."""
    tracker = Tracker.start(
        experiment,
        uri=tracking_uri(home()),
        home=home(),
        name="synthetic patterns",
        tags={"kind": "synthetic"},
        params=params,
    )
    with tracker.ending():
        tracker.log(results.metrics(), step=0)
        tracker.text("table.txt", text)
        with tempfile.TemporaryDirectory() as folder:
            draw(
                {(name, pattern): g for (name, pattern, seed), g in generators.items() if seed == 0},
                Path(folder) / FIGURE,
            )
            tracker.artifact(Path(folder) / FIGURE)
    return tracker
