"""The training of one run on Ray Train's workers."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.compute.memory import keep_freed_memory
from infra.errors import FaultError, InputError
from infra.process.stopping import Stopped, asked_first
from infra.ray.progress import LineBar
from infra.ray.session import Resources, Session
from infra.registry import TASKS
from infra.storage import cache
from infra.storage.faults import causes, disk_fault
from infra.tracking import Tracker
from infra.tracking.journal import Journal
from infra.tracking.tracker import Status
from infra.trust import trust_modules, trusted
from pipelines.training.best_checkpoint import weights_of
from pipelines.training.driver import resume_command
from pipelines.training.folder import OUTBOX, run_folder
from pipelines.training.keeping import InFolder, InStorage, Kept
from tasks.run import Run, modules

if TYPE_CHECKING:
    from ray import ObjectRef

    from infra.ray.trainer import RunTrainer
    from infra.storage.claim import Claim

_LOOKS = 10.0
"""Seconds between two looks for room for more workers."""
CHECKPOINT_SECONDS = 20.0
"""How long SIGTERM waits for a checkpoint; batch systems kill after 30 seconds."""


@dataclass(frozen=True, kw_only=True)
class _Work:
    """What the driver sends to each worker.

    Attributes:
        run: to train.
        home: the project's folder of data and runs.
        threads: of torch.
        terminal: whether the driver's output is one, where progress may be drawn over and over.
        trusted: modules whose code specs may name.
        kept: what it keeps, and where.
        assets: of the adapter, or None, as JSON in Ray's keeping: a vocabulary may be large.
    """

    run: Run
    home: Path
    threads: int
    terminal: bool
    trusted: tuple[str, ...]
    kept: Kept
    assets: ObjectRef


def fit(
    run: Run,
    *,
    tracker: Tracker,
    home: Path,
    session: Session,
    claim: Claim | None = None,
    assets: dict[str, Any] | None = None,
    stop: Path,
    callbacks: Sequence[Any] = (),
) -> None:
    """Train a run on Ray Train workers; one that was started under the same id goes on from its last checkpoint.

    Args:
        run: its complete description.
        tracker: of the run that records it.
        home: the folder of data and runs.
        claim: on the folder of its checkpoints in object storage; where None, they are in its folder.
        session: the open one.
        assets: of its adapter, where they are known; each worker makes them anew where None.
        stop: a file that asks the workers to end after a checkpoint, once it is there; SIGTERM makes it.
        callbacks: Ray Train's, called with every report of the workers, such as `infra.ray.tuning.reporter`.

    Raises:
        InputError: a worker refused its input.
        FaultError: Ray ended.
        RuntimeError: workers failed more often in a row, without progress, than `run.retries` allows.
        Stopped: a signal came, or somebody made the file `stop`.
    """
    import ray

    resources = Resources.plan(run.workers, fewest=run.worker_counts[0], cpus=run.cpus)
    kept = _kept(tracker, home, claim, stop)
    work = _Work(
        run=run,
        home=home,
        threads=resources.cpus,
        terminal=sys.stderr.isatty(),
        trusted=trusted(),
        kept=kept,
        assets=ray.put(json.dumps(assets)),
    )
    trainer = _trainer(work, tracker.run_id, resources, session, callbacks)
    try:
        with asked_first(partial(_ask, stop, tracker), seconds=CHECKPOINT_SECONDS):
            trainer.fit()
        if stop.exists():
            raise Stopped
    except (Exception, SystemExit) as error:
        if stop.exists() or not stop.parent.is_dir():  # who asked us to end may end the workers, and be gone
            raise Stopped from error
        if (said := _said(error, run, tracker.run_id, kept.folder)) is error:
            raise
        raise said from error
    finally:
        kept.tidy()


def _ask(stop: Path, tracker: Tracker) -> None:
    stop.touch()
    finish_soon(tracker, "KILLED")  # whoever stops us may not wait for what comes then


def _kept(tracker: Tracker, home: Path, claim: Claim | None, stop: Path) -> Kept:
    """Return what the workers of a run keep, and where."""
    folder = run_folder(home, tracker.run_id)
    journal = partial(_journal, folder / OUTBOX, tracker.uri, tracker.run_id)
    if claim is None:
        return InFolder(folder=folder, stop=stop, journal=journal)
    from infra.ray.relay import open_desk

    return InStorage(
        run_id=tracker.run_id,
        at=claim.folder,
        token=claim.token,
        folder=cache.folder(),
        desk=open_desk(journal, folder, stop),
    )


def _journal(folder: Path, uri: str, run_id: str) -> Journal:
    """Return the log of a run, which the driver sends on to MLflow."""
    return Journal(folder, lambda: Tracker.attach(uri, run_id, running=False))


def _said(error: BaseException, run: Run, run_id: str, folder: Path) -> BaseException:
    """Return what to raise for a training that failed: one line where we know what to do, else the error itself."""
    from ray.exceptions import RayError, RayTaskError
    from ray.train.v2.api.exceptions import TrainingFailedError

    resume = resume_command(run_id, modules(run))
    if isinstance(error, RayError) and not isinstance(error, RayTaskError):
        return FaultError(f"Ray ended under the run; `{resume}` goes on: {error}")
    if not isinstance(error, TrainingFailedError | OSError):
        return error
    for failure in (*getattr(error, "worker_failures", {}).values(), error):
        if cause := _input_error(failure):
            return InputError(str(cause))
        if why := disk_fault(failure, folder):
            return InputError(f"{why}, then `{resume}` goes on from the last checkpoint")
    return RuntimeError(f"training failed; `{resume}` goes on: {error}")


def _trainer(
    work: _Work, run_id: str, resources: Resources, session: Session, callbacks: Sequence[Any]
) -> RunTrainer:
    from ray.train import CheckpointConfig, FailureConfig, LoggingConfig, RunConfig, ScalingConfig

    from infra.ray.trainer import RunTrainer

    run = work.run
    return RunTrainer(
        _worker,
        session=session,
        worker_counts=run.worker_counts,
        progress=work.kept.progress,
        refused=partial(_final, work.kept.folder),
        train_loop_config={"work": work},
        scaling_config=ScalingConfig(
            num_workers=(run.worker_counts[0], run.workers) if len(run.worker_counts) > 1 else run.workers,
            elastic_resize_monitor_interval_s=_LOOKS,
            use_gpu=resources.gpu,
            resources_per_worker={"CPU": resources.cpus},
        ),
        run_config=RunConfig(
            name=run_id,
            storage_path=str(work.kept.ray_folder),
            failure_config=FailureConfig(max_failures=run.retries),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
            logging_config=LoggingConfig(log_level="WARNING"),
            callbacks=list(callbacks),
        ),
    )


def finish_soon(tracker: Tracker, status: Status) -> threading.Thread:
    """End a run in a thread of its own, which is returned: MLflow may not answer."""
    thread = threading.Thread(target=tracker.finish, args=[status], daemon=True)
    thread.start()
    return thread


def _input_error(error: BaseException) -> InputError | None:
    """Find the InputError among the causes of a worker's failure."""
    return next((each for each in causes(error) if isinstance(each, InputError)), None)


def _final(folder: Path, error: BaseException) -> InputError | str | None:
    """Return what is wrong where a failure says so, so that to try again would be in vain."""
    return _input_error(error) or disk_fault(error, folder)


def _worker(config: dict[str, _Work]) -> None:
    """Train on one worker; runs in a process of Ray's."""
    work = config["work"]
    os.environ["POLYPOOL_HOME"] = str(work.home)
    trust_modules(*work.trusted)
    import ray
    import ray.train
    import torch
    from ray.experimental.tqdm_ray import tqdm as drawn_by_the_driver
    from ray.train.torch import get_device

    from infra.ray.trainer import SaidInOneLine
    from pipelines.training.loop import Trainer

    # a logger that is named by its file, and tells of every checkpoint
    context = logging.getLogger(str(Path(ray.__file__).parent / "train/v2/_internal/execution/context.py"))
    context.setLevel(logging.WARNING)
    known, kept = partial(_final, work.kept.folder), work.kept
    for logger in (context, logging.getLogger("ray.train.v2._internal.util")):
        logger.addFilter(SaidInOneLine(known))
    torch.set_num_threads(work.threads)
    keep_freed_memory()
    first = ray.train.get_context().get_world_rank() == 0
    with closing(kept.log()) if first else nullcontext() as log:
        trainer = Trainer(
            work.run,
            TASKS.build(work.run.task, work.run, assets=json.loads(ray.get(work.assets))),
            log=log,
            report=kept.report,
            device=get_device(),
            bar=drawn_by_the_driver if work.terminal else LineBar,
            stopping=kept.stopping,
        )
        with kept.last() as folder:
            if folder is not None:
                trainer.resume(folder)
            elif work.run.init:
                trainer.begin_with(weights_of(work.run.init, work.tracking_uri))
        trainer.train()
        kept.close()
