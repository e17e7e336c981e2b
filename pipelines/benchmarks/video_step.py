"""Training steps on videos, beside that of images at the same sizes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from infra.device import best_device
from pipelines.benchmarks.measure import by_turns
from pipelines.benchmarks.row import Row
from pipelines.benchmarks.training import QUICK, Size, made_up_run, train
from pipelines.recipe import derive
from tasks.run import Run

ROUNDS = 3


def video_step(*, quick: bool = False) -> list[Row]:
    """Measure a step of VSE-infinity and of HGR on videos, on the GPU where there is one."""
    size = QUICK if quick else Size(steps=3, warm=1)
    device = best_device()

    def step_of(run: Run) -> float:
        ended = train(run, steps=size.warm + size.steps, device=device).ended[size.warm :]
        return 1e3 * float(np.median(np.diff(ended)))

    with tempfile.TemporaryDirectory() as name:
        images = derive(made_up_run(Path(name), size), data={"text_augment": ""})
        videos = derive(images, task="video_text")
        hgr = derive(videos, model="hgr", aggregator="attention")
        compared = {
            "video step / image step": (
                videos,
                "The same encoders and aggregators: only the adapter differs.",
            ),
            "hgr step / image step": (
                hgr,
                "Three visual encoders, a role graph, and attention of phrases to frames.",
            ),
        }
        return [
            Row(
                name=label,
                measured=f"{size.batch} sets of {size.regions} x {size.dim} and captions of 12 words or so, {device}",
                unit="ms",
                goal="at most",
                note=note,
                **by_turns(
                    lambda _, run=run: step_of(run), lambda _: step_of(images), rounds=ROUNDS
                ).numbers(),
            )
            for label, (run, note) in compared.items()
        ]
