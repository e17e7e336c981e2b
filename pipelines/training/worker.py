"""The worker of a run: its body, the same in every process, and how a process of Ray's is set up."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from polypool.infra.compute.dist import rank
from polypool.infra.errors import InputError
from polypool.infra.files import causes, disk_fault
from polypool.infra.process.memory import keep_freed_memory
from polypool.infra.process.output import LOG, TEXT
from polypool.infra.process.progress import resumed_bar
from polypool.infra.registry import TASKS
from polypool.infra.spec import trust_modules
from polypool.pipelines.training.checkpoints.best import weights_of
from polypool.pipelines.training.checkpoints.in_folder import InFolder
from polypool.pipelines.training.loop.trainer import Trainer
from polypool.tasks.adapter import TaskAdapter
from polypool.tasks.run import Run

if TYPE_CHECKING:
    from ray import ObjectRef

    from polypool.pipelines.training.checkpoints.in_storage import InStorage


FAULTS = "faults.log"
"""In the folder of a run, the whole of what was printed of faults in a line."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of a process of Ray's.

    Attributes:
        run, kept, uri: as of `train`.
        assets: of the adapter, as JSON in Ray's object store, as a vocabulary may be large; null to make them anew.
        home: the project's folder of data and runs.
        threads: of torch.
        terminal: whether the driver's output is a terminal, where a progress bar can be redrawn.
        log: how progress is printed, as of `polypool.infra.process.output.mode`.
        trusted: modules whose code specs may name.
    """

    run: Run
    kept: InFolder | InStorage
    uri: str
    assets: ObjectRef
    home: Path
    threads: int
    terminal: bool
    log: str
    trusted: tuple[str, ...]


def work_on_ray(config: dict[str, Work]) -> bool:
    """Set up a process of Ray's and train in it; return as `train` does."""
    work = config["work"]
    os.environ |= {"POLYPOOL_HOME": str(work.home), LOG: work.log}
    trust_modules(*work.trusted)
    import ray
    from ray.experimental.tqdm_ray import tqdm as drawn_by_the_driver
    from ray.train.torch import get_device

    from polypool.infra.ray.internals import CONTEXT_LOGGER, UTIL_LOGGER
    from polypool.infra.ray.trainer import OneLineErrors

    # named by its file; it logs every checkpoint
    context = logging.getLogger(str(Path(ray.__file__).parent / CONTEXT_LOGGER))
    context.setLevel(logging.WARNING)
    for logger in (context, logging.getLogger(UTIL_LOGGER)):
        logger.addFilter(OneLineErrors(partial(refused, work.kept.folder), work.kept.folder / FAULTS))
    set_up(threads=work.threads)
    assets = json.loads(ray.get(work.assets))
    return train(
        work.run,
        TASKS.build(work.run.task, work.run, assets=assets),
        work.kept,
        uri=work.uri,
        device=get_device(),
        bar=drawn_by_the_driver if work.terminal and work.log == TEXT else resumed_bar,
    )


def set_up(*, threads: int) -> None:
    """Set up this process for training, with a number of torch's threads."""
    torch.set_num_threads(threads)
    keep_freed_memory()


def train(
    run: Run,
    adapter: TaskAdapter,
    kept: InFolder | InStorage,
    *,
    uri: str,
    device: torch.device,
    bar: Callable[..., Any] = resumed_bar,
) -> bool:
    """Train a run to its end, from its last checkpoint where it has one; return False where it was stopped before.

    Args:
        run: to train.
        adapter: its task.
        kept: where log and checkpoints go.
        uri: of the tracking store, which has the run of `run.init`.
        device: where the model lives.
        bar: makes the progress bar.
    """
    with closing(kept.log()) if rank() == 0 else nullcontext() as log:
        trainer = Trainer(
            run,
            adapter,
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
                trainer.begin_with(weights_of(run.init, uri))
        finished = trainer.train()
        kept.close()
    return finished


def input_error(error: BaseException) -> InputError | None:
    """Return the `InputError` that an error is or was caused by, if any."""
    return next((each for each in causes(error) if isinstance(each, InputError)), None)


def refused(folder: Path, error: BaseException) -> InputError | str | None:
    """Return the cause of a failure that another try would meet again; None for other failures."""
    return input_error(error) or disk_fault(error, folder)
