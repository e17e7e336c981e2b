"""Training of a run on Ray Train workers."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polypool.infra.errors import FaultError, InputError
from polypool.infra.files import disk_fault, make_folder
from polypool.infra.paths import home
from polypool.infra.process.stopping import Stopped, graceful_stop, resume_hint
from polypool.infra.ray.session import Resources, Session, ray_session
from polypool.infra.spec import trusted
from polypool.infra.storage import cache
from polypool.infra.tracking import Tracker
from polypool.infra.tracking.journal import Journal
from polypool.pipelines.training.checkpoints import in_folder, in_storage
from polypool.pipelines.training.checkpoints.in_folder import LAST_STORED, InFolder
from polypool.pipelines.training.checkpoints.in_storage import InStorage
from polypool.pipelines.training.recording import finish_soon
from polypool.pipelines.training.run_folder import OUTBOX, RunLease, resume_command, run_folder
from polypool.pipelines.training.worker import Work, input_error, refused, work_on_ray
from polypool.tasks.run import Run, modules

if TYPE_CHECKING:
    from polypool.infra.ray.trainer import RunTrainer

_RESIZE_SECONDS = 10.0
"""Seconds between two looks for room for more workers."""
CHECKPOINT_SECONDS = 20.0
"""How long SIGTERM waits for a checkpoint; batch systems kill after 30 seconds."""


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
    work = Work(
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
        work_on_ray,
        session=session,
        worker_counts=run.worker_counts,
        progress=kept.progress,
        refused=partial(refused, kept.folder),
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
        if cause := input_error(failure):
            return InputError(str(cause))
        if why := disk_fault(failure, folder):
            return InputError(f"{why}, then `{resume}` goes on from the last checkpoint")
    return RuntimeError(f"training failed; `{resume}` goes on: {error}")
