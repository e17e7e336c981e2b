"""`python -m pipelines.synthetic`: how well four designs of GPO learn known pooling patterns.

Table 11 of VSE-infinity (appendix B.3). A generator makes pooling weights from the size of a set alone; trained on
sizes from 20 to 100, it is scored by the error of its weights on those and on others.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import tyro
from tqdm import tqdm

from aggregators.ranks.gpo import GPO
from infra.errors import InputError, command
from infra.paths import home
from infra.ray.session import local_cores
from infra.registry import AGGREGATORS
from infra.tracking import Tracker, tracking_uri
from pipelines.pooling_patterns.patterns import PATTERNS, learn, rmse
from pipelines.pooling_patterns.report import FIGURE, Results, draw

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


@dataclass(frozen=True, kw_only=True)
class Options:
    """How long it takes."""

    seeds: int = 3
    """Repetitions, with first weights and features of their own."""
    steps: int = 500
    """Training steps of every generator."""
    quick: bool = False
    """One seed and a few steps, to see that everything runs; the numbers then say nothing."""
    experiment: str = "synthetic"
    """MLflow experiment."""

    def __post_init__(self) -> None:
        for name in ("seeds", "steps"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name} must be at least 1, not {getattr(self, name)}")


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


def track(options: Options, results: Results, text: str, generators: Mapping[Key, GPO]) -> Tracker:
    """Keep numbers, table and figure in a finished run."""
    tracker = Tracker.start(
        options.experiment,
        uri=tracking_uri(home()),
        home=home(),
        name="synthetic patterns",
        tags={"kind": "synthetic"},
        params=asdict(options),
    )
    tracker.log(results.metrics(), step=0)
    tracker.text("table.txt", text)
    with tempfile.TemporaryDirectory() as folder:
        draw(
            {(name, pattern): g for (name, pattern, seed), g in generators.items() if seed == 0},
            Path(folder) / FIGURE,
        )
        tracker.artifact(Path(folder) / FIGURE)
    tracker.finish()
    return tracker


@command
def main() -> None:
    """Train, print the table, and keep it."""
    options = tyro.cli(Options, prog="python -m pipelines.synthetic", description=__doc__)
    torch.set_num_threads(1)  # the generators share the cores
    seeds, steps = (1, 5) if options.quick else (options.seeds, options.steps)
    generators = train(DESIGNS, seeds=seeds, steps=steps)
    results = score(DESIGNS, generators)
    text = f"{results.table()}\n\n{results.verdict(OURS)}"
    print(f"error (RMSE) of pooling weights: mean ± deviation, {seeds} seeds of {steps} steps\n\n{text}")
    tracker = track(options, results, text, generators)
    print(f"learned weights: {tracker.download(FIGURE)} (run {tracker.run_id} of {options.experiment!r})")


if __name__ == "__main__":
    main()
