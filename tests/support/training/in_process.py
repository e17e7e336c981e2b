"""Training with all that a user's run has but Ray: tracked, checkpointed, resumed, in this process."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from typing import Any

import torch
from toy import SilentBar

from infra.checkpoint import Snapshot
from infra.paths import home
from infra.ray.tuning import Ended
from infra.registry import TASKS
from infra.tracking import Tracker
from pipelines.training.best_checkpoint import weights_of
from pipelines.training.loop import Trainer
from tasks.run import Run


def launch(run: Run, tracker: Tracker, **_: object) -> str:
    """Stand in for `pipelines.training.runs.launch`."""
    folder = home() / "runs" / tracker.run_id
    checkpoint = folder / "checkpoint_9"  # later than Ray's, which are named by the year

    def report(metrics: dict[str, Any], snapshot: Snapshot | None) -> None:
        if snapshot is not None:
            shutil.rmtree(checkpoint, ignore_errors=True)
            checkpoint.mkdir(parents=True)
            snapshot.write(checkpoint)

    adapter, cpu = TASKS.build(run.task, run), torch.device("cpu")
    trainer = Trainer(run, adapter, log=tracker, report=report, device=cpu, bar=SilentBar)
    if last := sorted(folder.glob("checkpoint_[0-9]*")):
        trainer.resume(last[-1])
    elif run.init:
        trainer.begin_with(weights_of(run.init, tracker.uri))
    trainer.train()
    return tracker.run_id


def run_one_by_one(
    work: Callable[[int], Mapping[str, Any]], count: int, *, ended: Callable[[Ended], None], **_: object
) -> None:
    """Stand in for `infra.ray.tuning.run_side_by_side`; nothing is stopped early."""
    for number in range(count):
        ended(Ended(number=number, result=work(number), error=""))
