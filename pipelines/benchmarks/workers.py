"""One worker with all cores against two that share them, in samples a second of the same global batch."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from pipelines.benchmarks.measure import apart, by_turns
from pipelines.benchmarks.row import Row
from pipelines.benchmarks.training import QUICK, Size, made_up_run, train
from tasks.run import Run

MEDIUM = Size(steps=8, visual="regions(width=512)", text="bigru(width=512, min_count=1)")
ROUNDS = 3


def workers(*, quick: bool = False) -> list[Row]:
    """Measure training in one process and in two."""
    size, rounds = (QUICK, 1) if quick else (MEDIUM, ROUNDS)
    with tempfile.TemporaryDirectory() as name:
        run = made_up_run(Path(name), size)
        sides = by_turns(
            lambda number: speed(run, size, 2, meet=Path(name) / f"meet{number}"),
            lambda number: speed(run, size, 1, meet=Path(name) / f"meet{number}"),
            rounds=rounds,
        )
    return [
        Row(
            name="workers: 2 / 1",
            measured=f"training, global batch {size.batch}, {size.visual}, {size.text}",
            unit="/s",
            note=f"Processes that meet over gloo; {cores()} cores in all for both sides, so the ratio says what "
            "a second process costs or gains, not what a second machine adds. No target.",
            **sides.numbers(),
        )
    ]


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def speed(run: Run, size: Size, count: int, *, meet: Path) -> float:
    """Return the samples a second of `count` workers in fresh processes.

    Args:
        run: what they train.
        size: how many steps.
        count: workers.
        meet: a file that does not exist yet, by which they find each other.
    """
    threads = max(1, cores() // count)
    run = replace(run, workers=count, cpus=threads)
    calls = [(run, size.warm + size.steps, rank, threads, str(meet)) for rank in range(count)]
    began_WS = np.array(apart(_worker, calls))[:, size.warm :]
    return size.batch / float(np.median(np.diff(began_WS, axis=1).mean(axis=0)))


def _worker(run: Run, steps: int, rank: int, threads: int, meet: str) -> list[float]:
    """Train in a group of `run.workers`; return when each step began."""
    torch.set_num_threads(threads)
    if run.workers > 1:
        place = {"init_method": f"file://{meet}", "rank": rank, "world_size": run.workers}
        dist.init_process_group("gloo", timeout=timedelta(minutes=2), **place)
    try:
        return train(run, steps=steps, device=torch.device("cpu")).began
    finally:
        if run.workers > 1:
            dist.destroy_process_group()
