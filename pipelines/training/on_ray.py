"""Training of a run on Ray Train workers."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polypool.infra.errors import FaultError, InputError
from polypool.infra.files import causes, disk_fault, make_folder
from polypool.infra.paths import home
from polypool.infra.process.memory import keep_freed_memory
from polypool.infra.process.stopping import Stopped, graceful_stop, resume_hint
from polypool.infra.ray.progress import LineBar
from polypool.infra.ray.session import Resources, Session, ray_session
from polypool.infra.spec import trust_modules, trusted
from polypool.infra.storage import cache
from polypool.infra.tracking import Tracker
from polypool.infra.tracking.journal import Journal
from polypool.pipelines.training.checkpoints import in_folder, in_storage
from polypool.pipelines.training.checkpoints.in_folder import LAST_STORED, InFolder
from polypool.pipelines.training.checkpoints.in_storage import InStorage
from polypool.pipelines.training.folder import OUTBOX, RunLease, resume_command, run_folder
from polypool.pipelines.training.recording.sending import finish_soon
from polypool.pipelines.training.worker import Work, train_worker
from polypool.tasks.run import Run, modules

if TYPE_CHECKING:
    from ray import ObjectRef

    from polypool.infra.ray.trainer import RunTrainer

_RESIZE_SECONDS = 10.0
"""Seconds between two looks for room for more workers."""
CHECKPOINT_SECONDS = 20.0
"""How long SIGTERM waits for a checkpoint; batch systems kill after 30 seconds."""


@dataclass(frozen=True, kw_only=True)
class RayWork(Work):
    """The work of each worker, and the settings of its process.

    Attributes:
        home: the project's folder of data and runs.
        threads: of torch.
        terminal: whether the driver's output is a terminal, where a progress bar can be redrawn.
        trusted: modules whose code specs may name.
        assets: of the adapter as JSON, or of None; in Ray's object store, as a vocabulary may be large.
    """

    home: Path
    threads: int
    terminal: bool
    trusted: tuple[str, ...]
    assets: ObjectRef


def fit(
    run: Run,
    tracker: Tracker,
    *,
    lease: RunLease,
    assets: Mapping[str, Any] | None = None,
    stop: Path | None = None,
    callbacks: Sequence[Any] = (),
) -> None:
    """Train a tracked run on Ray Train workers, from its last checkpoint where it has one.

    Args:
        run: its complete description.
        tracker: of the run.
        lease: on the run.
        assets: of its adapter, where they are known; each worker makes them anew where None.
        stop: a file that, once it exists, ends the workers after a checkpoint, as SIGTERM does; where None, one in the
            run's folder.
        callbacks: of Ray Train, called with every report of the workers.

    Raises:
        InputError: a worker refused its input.
        FaultError: Ray ended.
        RuntimeError: workers failed more often in a row, without progress, than `run.retries` allows.
        Stopped: a signal came, or the file `stop` was created.
    """
    folder = make_folder(run_folder(home(), tracker.run_id))
    if stop is None:
        stop = folder / "stop"
        stop.unlink(missing_ok=True)
    _remove_orphans(folder, lease)
    with resume_hint(resume_command(tracker.run_id, modules(run))), ray_session() as session:
        kept = _kept(tracker, folder, lease, stop)
        trainer = _trainer(run, tracker, kept, session, assets=assets, callbacks=callbacks)
        try:
            with graceful_stop(partial(_stop, stop, tracker), seconds=CHECKPOINT_SECONDS):
                trainer.fit()
            if stop.exists():
                raise Stopped
        except (Exception, SystemExit) as error:
            if stop.exists() or not stop.parent.is_dir():  # workers may be killed after a request to stop
                raise Stopped from error
            if (plain := _plain_error(error, run, tracker.run_id, kept.folder)) is error:
                raise
            raise plain from error
        finally:
            kept.tidy()
    _remove_orphans(folder, lease)


def _remove_orphans(folder: Path, lease: RunLease) -> None:
    if lease.there is None:
        in_folder.remove_unlisted(folder)
    else:
        in_storage.keep(lease.there.folder, in_storage.newest(lease.there.folder))


def _stop(stop: Path, tracker: Tracker) -> None:
    stop.touch()
    finish_soon(tracker, "KILLED")  # this process may be killed before its end


def _kept(tracker: Tracker, folder: Path, lease: RunLease, stop: Path) -> InFolder | InStorage:
    journal = partial(open_journal, folder / OUTBOX, tracker.uri, tracker.run_id)
    if lease.there is None:
        return InFolder(folder=folder, stop=stop, journal=journal)
    from polypool.infra.ray.remote_log import open_queue

    return InStorage(
        run_id=tracker.run_id,
        at=lease.there.folder,
        token=lease.there.token,
        folder=cache.folder(),
        queue=open_queue(journal, folder / LAST_STORED, stop),
    )


def open_journal(folder: Path, uri: str, run_id: str) -> Journal:
    """Open the log of a run, which the driver sends to MLflow."""
    return Journal(folder, lambda: Tracker.attach(uri, run_id, running=False))


def _trainer(
    run: Run,
    tracker: Tracker,
    kept: InFolder | InStorage,
    session: Session,
    *,
    assets: Mapping[str, Any] | None,
    callbacks: Sequence[Any],
) -> RunTrainer:
    import ray
    from ray.train.v2.api.config import (
        CheckpointConfig,
        FailureConfig,
        LoggingConfig,
        RunConfig,
        ScalingConfig,
    )

    from polypool.infra.ray.trainer import RunTrainer

    resources = Resources.plan(run.workers, fewest=run.worker_counts[0], cpus=run.cpus)
    work = RayWork(
        run=run,
        uri=tracker.uri,
        kept=kept,
        home=home(),
        threads=resources.cpus,
        terminal=sys.stderr.isatty(),
        trusted=trusted(),
        assets=ray.put(json.dumps(assets)),
    )
    return RunTrainer(
        _ray_worker,
        session=session,
        worker_counts=run.worker_counts,
        progress=kept.progress,
        refused=partial(_refused, kept.folder),
        train_loop_config={"work": work},
        scaling_config=ScalingConfig(
            num_workers=(run.worker_counts[0], run.workers) if len(run.worker_counts) > 1 else run.workers,
            elastic_resize_monitor_interval_s=_RESIZE_SECONDS,
            use_gpu=resources.gpu,
            resources_per_worker={"CPU": resources.cpus},
        ),
        run_config=RunConfig(
            name=tracker.run_id,
            storage_path=str(kept.ray_folder),
            failure_config=FailureConfig(max_failures=run.retries),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
            logging_config=LoggingConfig(log_level="WARNING"),
            callbacks=list(callbacks),
        ),
    )


def _ray_worker(config: dict[str, RayWork]) -> None:
    """Set up a process of Ray's and train in it."""
    work = config["work"]
    os.environ["POLYPOOL_HOME"] = str(work.home)
    trust_modules(*work.trusted)
    import ray
    import torch
    from ray.experimental.tqdm_ray import tqdm as drawn_by_the_driver
    from ray.train.torch import get_device

    from polypool.infra.ray.internals import CONTEXT_LOGGER, UTIL_LOGGER
    from polypool.infra.ray.trainer import OneLineErrors

    # named by its file; it logs every checkpoint
    context = logging.getLogger(str(Path(ray.__file__).parent / CONTEXT_LOGGER))
    context.setLevel(logging.WARNING)
    for logger in (context, logging.getLogger(UTIL_LOGGER)):
        logger.addFilter(OneLineErrors(partial(_refused, work.kept.folder)))
    torch.set_num_threads(work.threads)
    keep_freed_memory()
    train_worker(
        work,
        assets=json.loads(ray.get(work.assets)),
        device=get_device(),
        bar=drawn_by_the_driver if work.terminal else LineBar,
    )


def _plain_error(error: BaseException, run: Run, run_id: str, folder: Path) -> BaseException:
    """Return the error to raise for a failed training: a one-line message for known causes, else the error itself."""
    from ray.exceptions import RayError, RayTaskError
    from ray.train import TrainingFailedError

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


def _input_error(error: BaseException) -> InputError | None:
    return next((each for each in causes(error) if isinstance(each, InputError)), None)


def _refused(folder: Path, error: BaseException) -> InputError | str | None:
    """Return the cause of a failure that another try would meet again; None for other failures."""
    return _input_error(error) or disk_fault(error, folder)
