"""The body of a training worker: the same in Ray's workers and in a process without Ray."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from polypool.infra.compute.dist import rank
from polypool.infra.registry import TASKS
from polypool.pipelines.training.checkpoints.best import weights_of
from polypool.pipelines.training.checkpoints.in_folder import InFolder
from polypool.pipelines.training.loop import Trainer
from polypool.tasks.run import Run

if TYPE_CHECKING:
    import torch

    from polypool.pipelines.training.checkpoints.in_storage import InStorage


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of each worker.

    Attributes:
        run: to train.
        uri: of the tracking store, which has the run of `run.init`.
        kept: where log and checkpoints go.
    """

    run: Run
    uri: str
    kept: InFolder | InStorage


def train_worker(
    work: Work, *, assets: Mapping[str, Any] | None, device: torch.device, bar: Callable[..., Any]
) -> None:
    """Train a run to its end, from its last checkpoint where it has one.

    Args:
        work: as the driver describes it.
        assets: of the adapter; None to make them anew.
        device: where the model lives.
        bar: makes the progress bar.
    """
    run, kept = work.run, work.kept
    with closing(kept.log()) if rank() == 0 else nullcontext() as log:
        trainer = Trainer(
            run,
            TASKS.build(run.task, run, assets=assets),
            log=log,
            report=kept.report,
            device=device,
            bar=bar,
            stopping=kept.stopping,
        )
        with kept.last() as folder:
            if folder is not None:
                trainer.resume(folder)
            elif run.init:
                trainer.begin_with(weights_of(run.init, work.uri))
        trainer.train()
        kept.close()
