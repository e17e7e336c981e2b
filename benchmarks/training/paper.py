"""A training step at the sizes of VSE-infinity, against its authors' arithmetic and its bare matrix products."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.measure import Measurement, Scale, by_turns, seconds
from benchmarks.training.authors import AuthorsStep
from benchmarks.training.products import Products
from benchmarks.training.watched import TrainingSize, random_run
from polypool.infra.batches import Batch
from polypool.infra.process.memory import keep_freed_memory
from polypool.infra.registry import TASKS
from polypool.pipelines.recipes.load import derive
from polypool.pipelines.training.loop.trainer import Trainer
from polypool.tasks.run import Run

CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class PaperSize(TrainingSize):
    """36 x 2048 regions, a BiGRU of 1,024 and 300, batches of 128."""

    quick: ClassVar = {"images": 160, "batch": 64, "steps": 1, "rounds": 2}
    steps: int = 3
    rounds: int = 5


def paper_step(scale: Scale = "full") -> list[Measurement]:
    """Measure a step of `coco_region_bigru` as the loop takes it, on the CPU."""
    size = PaperSize.of(scale)
    keep_freed_memory()  # as training's workers do; it serves all sides here
    with tempfile.TemporaryDirectory() as name:
        run = derive(random_run(Path(name), size), optim={"precision": "float32"})
        trainer, whole = past_warm_up(run), past_warm_up(derive(run, data={"visual_augment": ""}))
        check(whole, distinct(whole, size.batch))
        batches = [trainer.data.batch(index_B, seed=0, epoch=1) for index_B in drawn(trainer, size.steps)]
    wide = [{**batch, "visual": batch["visual"].float()} for batch in batches]
    authors, tensors = AuthorsStep(trainer.model, run.optim), {}
    products = [Products(trainer.model, batch, tensors) for batch in batches]
    ours, theirs = (per_step(step, each) for step, each in ((trainer.train_step, batches), (authors, wide)))
    bare = per_step(lambda work: work(), products)
    for side in (ours, theirs, bare):
        side(0)
    measured = (
        f"forward to optimiser, {size.batch} sets of up to {size.regions} x {size.dim} regions, captions of about 14 "
        "words, float32, on the CPU"
    )
    operations = float(np.mean([work.operations for work in products])) / 1e9
    return [
        Measurement(
            name="paper step / the authors' way",
            measured=measured,
            unit="ms",
            target=1.5,
            note="Reference: the arithmetic of VSE-infinity's code: pads are mapped, torch's GRU, torch's sort, a row "
            "of GPO's GRU for every set, AdamW by parameter. Where no region is dropped, both have the same loss and "
            "the same gradients, which is checked first.",
            **by_turns(ours, theirs, rounds=size.rounds).numbers(invert=True),
        ),
        Measurement(
            name="paper step / its matrix products",
            measured=measured,
            unit="ms",
            goal="at most",
            target=1.25,
            note=f"Reference: its {operations:,.0f} billion operations as bare torch.mm of the same shapes, no pads.",
            **by_turns(ours, bare, rounds=size.rounds).numbers(),
        ),
    ]


def past_warm_up(run: Run, device: torch.device = CPU) -> Trainer:
    """Return the trainer of a run that has come to the epoch in which the hardest negatives count."""
    trainer = Trainer(
        run,
        TASKS.build(run.task, run),
        log=None,
        report=lambda metrics, folder: None,
        device=device,
        bar=lambda **_: None,
    )
    trainer.progress.samples = trainer.order.epoch_samples
    trainer.model.train()
    return trainer


def drawn(trainer: Trainer, steps: int) -> list[np.ndarray]:
    """Return the sample numbers of the first batches."""
    return [index_B for _, index_B in zip(range(steps), trainer.order.batches(0), strict=False)]


def distinct(trainer: Trainer, size: int) -> Batch:
    """Return a batch of so many different images, each with its first caption."""
    _, first_I = np.unique(trainer.data.owner_T, return_index=True)
    return trainer.data.batch(first_I[:size], seed=0, epoch=1)


def check(trainer: Trainer, batch: Batch) -> None:
    """Let both ways take a step from the same weights on sets without pads, and compare loss and gradient.

    With pads, the authors' batch normalisation counts them; and only the diagonal is positive to them, so images are to
    be different.
    """
    authors = AuthorsStep(trainer.model, trainer.run.optim)
    theirs = authors({**batch, "visual": batch["visual"].float()})
    ours = trainer.train_step(batch)
    for name, expected in theirs.items():
        torch.testing.assert_close(ours[name].detach(), expected, rtol=1e-4, atol=1e-4)
    gradient, expected = (_gradient(model) for model in (trainer.model, authors.model))
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def _gradient(model: nn.Module) -> Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def per_step(step: Callable[[Any], Any], each: Sequence[Any]) -> Callable[[int], float]:
    """Return what takes a step with each, and says how many milliseconds one took."""

    def steps() -> None:
        for one in each:
            step(one)

    return lambda _: 1e3 * seconds(steps) / len(each)
