"""`python -m benchmarks.coco_dry_run`: some steps of training and one validation at the size of COCO, without COCO.

The corpus has as many images and captions, of random words. Of the features, 17 GB, some sets are written to a
temporary folder, and the store repeats them; every batch is read from them as in training. It says what an epoch and
a run would cost here, in seconds of one core, and ends with 1 where memory grows from step to step.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import torch
import tyro

from benchmarks.measure import memory
from benchmarks.random_data import caption_corpus, feature_store
from benchmarks.training.watched import Enough
from polypool.infra.errors import InputError
from polypool.infra.fields import at_least
from polypool.infra.process.command import command
from polypool.infra.process.memory import keep_freed_memory
from polypool.infra.registry import RECIPES
from polypool.infra.store import FeatureStore
from polypool.infra.store.shard import Place
from polypool.pipelines.recipes.load import derive
from polypool.pipelines.training.loop.trainer import Trainer
from polypool.tasks.image_text import ImageText
from polypool.tasks.run import Run

SETTLED = 5
"""The step after which memory is to stay as it is."""
GROWTH = 1.1
"""How many times the memory of the process itself may grow from then on: by 5 % until step 20, in another run by 6 %
until step 40."""
_HOUR = 3600


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """Sizes of COCO, and the recipe `coco_region_bigru`."""

    steps: Annotated[int, at_least(SETTLED + 1)] = 20
    """Steps of training."""
    batch: Annotated[int, at_least(2)] = 128
    """Captions of a step."""
    images: Annotated[int, at_least(1)] = 113_287
    """Images for training, with five captions each."""
    val: Annotated[int, at_least(1)] = 5_000
    """Images of the validation, with five captions each."""
    regions: Annotated[int, at_least(1)] = 36
    """Vectors of an image."""
    dim: Annotated[int, at_least(1)] = 2048
    """Width of the vectors, in float16."""
    distinct: Annotated[int, at_least(1)] = 4_000
    """Images that have features of their own, which the others share: 590 MB on the disk."""
    words: Annotated[int, at_least(1)] = 11_000
    """Different words."""
    visual: str = "regions"
    """Encoder of the images."""
    text: str = "bigru"
    """Encoder of the captions."""

    def run(self, folder: Path) -> Run:
        """Write corpus and features to a folder, and return the run on them."""
        caption_corpus(folder / "corpus", images=self.images, words=self.words, val=self.val)
        feature_store(folder / "regions", np.full(self.distinct, self.regions), dim=self.dim)
        return derive(
            RECIPES.get("coco_region_bigru")(),
            data={"corpus": str(folder / "corpus"), "features": str(folder / "regions")},
            protocol="whole",
            visual=self.visual,
            text=self.text,
            optim={"batch": self.batch},
        )


class Repeated(FeatureStore):
    """A store in which set i is set i modulo the number of those that are written.

    Attributes:
        count: how many it has.
    """

    count = 0

    @property
    def ids(self) -> pa.ChunkedArray:
        """The number of every row."""
        return pa.chunked_array([pa.array(map(str, range(self.count)), pa.string())])

    def __len__(self) -> int:
        return self.count

    def place(self, row: int) -> Place:
        """Return where the set is written that a row repeats."""
        return super().place(row % self.manifest.sets)

    def sizes(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of vectors of each row."""
        return super().sizes(np.asarray(rows) % self.manifest.sets)


class RepeatedFeatures(ImageText):
    """Image-text retrieval whose items share features."""

    @cached_property
    def store(self) -> FeatureStore:
        """The features of all items."""
        repeated = Repeated.open(self.run.data.features)
        assert isinstance(repeated, Repeated)
        repeated.count = sum(self.corpus_kind.open(self.run.data.corpus).splits.values())
        return repeated


@dataclass(kw_only=True)
class Meter:
    """In the place of a progress bar: seconds of all cores and memory after each step; training ends after `steps`."""

    steps: int
    seconds: list[float] = field(default_factory=list)
    memory: list[dict[str, float]] = field(default_factory=list)

    def update(self, _: int) -> None:
        """Note a step's end, and at first the beginning of training."""
        self.seconds.append(time.process_time())
        self.memory.append(memory())
        if len(self.seconds) > self.steps:
            raise Enough


@dataclass(frozen=True, kw_only=True)
class Steps:
    """What steps took.

    Args:
        opened: seconds of one core until the trainer was ready.
        step_S: of each step.
        memory_S: in MB after each step.
    """

    opened: float
    step_S: np.ndarray
    memory_S: list[dict[str, float]]

    @property
    def grown(self) -> float:
        """How many times as much memory the process itself has after the last step as when it had settled."""
        return self.memory_S[-1]["RssAnon"] / self.memory_S[SETTLED - 1]["RssAnon"]

    @property
    def median(self) -> float:
        """Core-seconds of a step; the first one is left out."""
        return float(np.median(self.step_S[1:]))

    def __str__(self) -> str:
        lines = [f"ready after {self.opened:,.0f} core-seconds"]
        for number in (SETTLED, len(self.memory_S)):
            now = self.memory_S[number - 1]
            lines.append(
                f"after step {number}: {now['VmRSS']:,.0f} MB, of which {now['RssAnon']:,.0f} MB its own and "
                f"{now['RssFile']:,.0f} MB pages of files"
            )
        low, high = self.step_S[1:].min(), self.step_S[1:].max()
        return "\n".join(
            [
                *lines,
                f"its own memory: {self.grown:.3f}x from step {SETTLED} to {len(self.memory_S)}",
                f"a step: {self.median:.2f} core-seconds ({low:.2f}-{high:.2f})",
            ]
        )


def trained(run: Run, *, steps: int) -> tuple[Trainer, Steps]:
    """Train for some steps; return the trainer, and what they took.

    Raises:
        InputError: the data ended before.
    """
    meter, began = Meter(steps=steps), time.process_time()
    trainer = Trainer(
        run,
        RepeatedFeatures(run, dev_protocol="whole"),
        log=None,
        report=lambda metrics, folder: None,
        device=torch.device("cpu"),
        bar=lambda **_: meter,
    )
    opened = time.process_time() - began
    try:
        trainer.train()
    except Enough:
        return trainer, Steps(opened=opened, step_S=np.diff(meter.seconds), memory_S=meter.memory[1:])
    raise InputError(f"the training ended before {steps} steps: take fewer, or more images")


def epoch(trainer: Trainer, steps: Steps) -> str:
    """Validate on all of `val`; return what that took, and what an epoch and the recipe would take."""
    began = time.process_time()
    trainer.adapter.evaluate(trainer.model, "val", "whole")
    validated = time.process_time() - began
    count, epochs = trainer.order.epoch_steps, trainer.run.optim.epochs
    hours = (count * steps.median + validated) / _HOUR
    return (
        f"the validation: {validated:,.0f} core-seconds; memory at most {memory()['VmHWM']:,.0f} MB\n"
        f"so an epoch of {count:,} steps and a validation: {hours:,.2f} core-hours; {epochs} epochs: "
        f"{epochs * hours:,.0f}"
    )


@command
def main() -> None:
    """Write the data, measure, and print."""
    options: Any = tyro.cli(DryRun, description=__doc__)
    keep_freed_memory()  # as training's workers do
    torch.set_num_threads(
        1
    )  # several would wait for each other on a busy machine, and that is processor time too
    with tempfile.TemporaryDirectory() as name:
        run = options.run(Path(name))
        captions = 5 * options.images
        print(
            f"{options.images:,} images of {options.regions} x {options.dim} float16, {captions:,} captions, "
            "one thread",
            flush=True,
        )
        trainer, steps = trained(run, steps=options.steps)
        print(steps, flush=True)
        print(epoch(trainer, steps))
    if steps.grown > GROWTH:
        raise SystemExit(f"memory grows: {steps.grown:.3f}x, wanted at most {GROWTH}x")


if __name__ == "__main__":
    main()
