"""A short training run on random data, with the time of each part of a step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.measure import Size
from benchmarks.random_data import image_run
from polypool.infra.batches import Dataset, fetch_ahead
from polypool.infra.registry import TASKS
from polypool.pipelines.training.loop.trainer import Trainer
from polypool.tasks.adapter import TaskAdapter
from polypool.tasks.run import Run


@dataclass(frozen=True, kw_only=True)
class TrainingSize(Size):
    """The data, the widths, and how many steps are timed after `warm` ones.

    The recipe is `coco_region_bigru` but for what is said here.
    """

    tiny: ClassVar = {
        "images": 24,
        "regions": 5,
        "dim": 16,
        "words": 20,
        "batch": 8,
        "steps": 2,
        "warm": 1,
        "rounds": 1,
        "visual": "regions(width=8)",
        "text": "bigru(width=8, embedding=4, min_count=1)",
    }
    images: int = 768
    regions: int = 36
    dim: int = 2048
    words: int = 11_000
    batch: int = 128
    steps: int = 5
    warm: int = 2
    visual: str = "regions"
    text: str = "bigru(min_count=1)"


def random_run(folder: Path, size: TrainingSize) -> Run:
    """Write a corpus and a store to `folder` and return the run that trains on them."""
    sizes = {"images": size.images, "words": size.words, "regions": size.regions, "dim": size.dim}
    return image_run(folder, **sizes, optim={"batch": size.batch}, visual=size.visual, text=size.text)


class Enough(Exception):
    """All steps are done."""


@dataclass(kw_only=True)
class Watch:
    """When each step began and left the forward pass and ended, by the clock; and how long batches took to make."""

    device: torch.device
    began: list[float] = field(default_factory=list)
    scored: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    batches: list[float] = field(default_factory=list)

    def note(self, times: list[float]) -> None:
        """Add the time to one of the lists, once the device is idle."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        times.append(time.perf_counter())


class Timed:
    """A data set that notes how long each batch took to make."""

    def __init__(self, data: Dataset, watch: Watch) -> None:
        self.data, self.watch = data, watch

    def __len__(self) -> int:
        return len(self.data)

    def fetch_ahead(self, index_B: np.ndarray) -> Sequence[Future]:
        """Begin to fetch what samples that will be asked for read."""
        return fetch_ahead(self.data, index_B)

    def batch(self, index_B: np.ndarray, *, seed: int, epoch: int) -> dict[str, Tensor]:
        """Make a batch."""
        started = time.perf_counter()
        batch = self.data.batch(index_B, seed=seed, epoch=epoch)
        self.watch.batches.append(time.perf_counter() - started)
        return batch


class TimedAdapter:
    """A task adapter that notes when the loop asks for a loss and has it, and stops training after `steps` of them."""

    def __init__(self, adapter: TaskAdapter, watch: Watch, *, steps: int) -> None:
        self.adapter, self.watch, self.steps = adapter, watch, steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self.adapter, name)

    def data(self, split: str) -> Timed:
        """Return the samples of a split."""
        return Timed(self.adapter.data(split), self.watch)

    def loss(self, model: nn.Module, batch: dict[str, Tensor], *, epoch: float) -> dict[str, Tensor]:
        """Return what the adapter returns."""
        self.watch.note(self.watch.began)
        if len(self.watch.began) > self.steps:
            raise Enough
        terms = self.adapter.loss(model, batch, epoch=epoch)
        self.watch.note(self.watch.scored)
        return terms


class TimedBar:
    """In the place of the loop's progress bar, which hears of the end of each step; nobody sees it."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def update(self, _: int) -> None:
        """Note the end of a step, and at first the beginning of training."""
        self.watch.note(self.watch.ended)


def train(run: Run, *, steps: int, device: torch.device) -> Watch:
    """Train for so many steps with the project's own loop and task, and return their times."""
    watch = Watch(device=device)
    adapter = TimedAdapter(TASKS.build(run.task, run), watch, steps=steps)
    trainer = Trainer(
        replace(run, log_every=steps + 1),
        adapter,
        log=None,
        report=lambda metrics, folder: None,
        device=device,
        bar=lambda **_: TimedBar(watch),
    )
    try:
        trainer.train()
    except Enough:
        return watch
    raise AssertionError(f"the data ended before {steps} steps")
