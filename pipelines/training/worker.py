"""The worker of a run: its body, the same in every process, and how a process of Ray's is set up."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from polypool.infra.compute.dist import rank
from polypool.infra.errors import InputError
from polypool.infra.files import causes, disk_fault, make_folder
from polypool.infra.process.memory import keep_freed_memory
from polypool.infra.process.output import LOG, TEXT
from polypool.infra.process.progress import resumed_bar
from polypool.infra.registry import TASKS
from polypool.infra.spec import trust_modules
from polypool.infra.storage import Url, exists, write_bytes
from polypool.infra.tracking import Sender, Tracker
from polypool.pipelines.training.checkpoints.best import weights_of
from polypool.pipelines.training.checkpoints.kept import ByRay, InFolder
from polypool.pipelines.training.loop.trainer import Trainer
from polypool.pipelines.training.record import send_members
from polypool.tasks.adapter import TaskAdapter
from polypool.tasks.run import Run

if TYPE_CHECKING:
    from ray import ObjectRef


REFUSED = "refused.txt"
"""Beside the checkpoints of a run, the message of an error that no restart of its workers can help."""


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
    kept: ByRay
    uri: str
    assets: ObjectRef
    home: Path
    threads: int
    terminal: bool
    log: str
    trusted: tuple[str, ...]


def work_on_ray(config: dict[str, Work]) -> bool:
    """Set up a process of Ray's and train in it; return as `train` does.

    After an error that a restart would meet again, its message is left for the driver, and restarted workers return.
    """
    work = config["work"]
    kept = work.kept
    if exists(kept.at / REFUSED):
        return False
    os.environ |= {"POLYPOOL_HOME": str(work.home), LOG: work.log}
    trust_modules(*work.trusted)
    import ray
    from ray.experimental.tqdm_ray import tqdm as drawn_by_the_driver
    from ray.train.torch import get_device

    set_up(threads=work.threads)
    if isinstance(kept.at, Url):  # this machine may share no folder with the driver's
        kept = replace(kept, journal=partial(_own_log, work))
    assets = json.loads(ray.get(work.assets))
    try:
        finished = train(
            work.run,
            TASKS.build(work.run.task, work.run, assets=assets),
            kept,
            uri=work.uri,
            device=get_device(),
            bar=drawn_by_the_driver if work.terminal and work.log == TEXT else resumed_bar,
        )
    except Exception as error:
        why = input_error(error) or disk_fault(error, work.home)
        if why:
            with suppress(InputError, OSError):  # the disk may be full
                write_bytes(kept.at / REFUSED, str(why).encode())
        raise
    if isinstance(kept.at, Url) and rank() == 0:
        tracker = Tracker.attach(work.uri, kept.at.name, running=False)
        if why := send_members(work.home / "runs" / kept.at.name / "worker", tracker):
            print(f"note: runs of the tasks of {kept.at.name} are not all in MLflow ({why})", file=sys.stderr)
    return finished


def _own_log(work: Work) -> Sender:
    """Return a log of the run that this process sends to MLflow itself."""
    run_id = work.kept.at.name
    folder = make_folder(work.home / "runs" / run_id / "worker")
    return Sender(folder, lambda: Tracker.attach(work.uri, run_id, running=False), earlier=True)


def set_up(*, threads: int) -> None:
    """Set up this process for training, with a number of torch's threads."""
    torch.set_num_threads(threads)
    keep_freed_memory()


def train(
    run: Run,
    adapter: TaskAdapter,
    kept: InFolder | ByRay,
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
