"""Training of a run on Ray Train workers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polypool.infra.errors import FaultError, InputError
from polypool.infra.files import disk_fault
from polypool.infra.paths import home
from polypool.infra.process.output import mode
from polypool.infra.process.progress import say
from polypool.infra.ray.session import Resources, Session, ray_session, waiting_for_cores
from polypool.infra.spec import trusted
from polypool.infra.storage import cache
from polypool.infra.tracking import Tracker
from polypool.infra.tracking.journal import Journal
from polypool.pipelines.training.checkpoints.in_folder import KEPT, LAST_STORED, ListedByRay
from polypool.pipelines.training.checkpoints.in_storage import InStorage
from polypool.pipelines.training.run_folder import RunLease, resume_command, run_folder
from polypool.pipelines.training.worker import FAULTS, Work, input_error, refused, work_on_ray
from polypool.tasks.run import Run, modules

if TYPE_CHECKING:
    from polypool.infra.ray.trainer import RunTrainer

_PATIENCE = "86400"  # seconds that workers wait for cores of others, which Ray calls a fault after 60
_RESIZE_SECONDS = 10.0
"""Seconds between two looks for room for more workers."""


def train_on_ray(
    run: Run,
    tracker: Tracker,
    *,
    assets: Mapping[str, Any],
    lease: RunLease,
    stop: Path,
    journal: Callable[[], Journal],
    metric: str,
    until_stopped: Callable[[Callable[[], bool]], None],
) -> None:
    """Train a run on Ray Train workers, which are retried as long as they progress; errors as of `fit`.

    Args:
        run: its complete description.
        tracker: of the run.
        assets: of its adapter.
        lease: on the run.
        stop: a file that, once it exists, ends the workers after a checkpoint.
        journal: opens the run's log.
        metric: reported to the scheduler of the sweep that this is a trial of; empty for none.
        until_stopped: calls what trains, which SIGTERM ends after a checkpoint.
    """
    folder = run_folder(home(), tracker.run_id)
    if len(run.worker_counts) == 1:  # else Ray looks anew for fewer
        os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", _PATIENCE)
    with ray_session() as session:
        kept = _kept(tracker, folder, lease, stop, journal)
        resources = Resources.plan(run.workers, fewest=run.worker_counts[0], cpus=run.cpus)
        trainer = _trainer(run, tracker, kept, session, resources, assets=assets, metric=metric)
        try:
            need = f"{run.workers} worker{'s' if run.workers > 1 else ''} of Ray to start"
            say(f"waiting for {need}", what=need)

            def train() -> bool:
                result: Any = trainer.fit()  # what it has depends on Ray's version of Train
                return bool(result.return_value)

            with waiting_for_cores(run.worker_counts[0] * resources.cpus, session=session):
                until_stopped(train)
        except Exception as error:
            if (plain := _plain_error(error, run, tracker.run_id, kept.folder)) is error:
                raise
            raise plain from error
        finally:
            kept.tidy()


def _kept(
    tracker: Tracker, folder: Path, lease: RunLease, stop: Path, journal: Callable[[], Journal]
) -> ListedByRay | InStorage:
    if lease.there is None:
        return ListedByRay(folder=folder, stop=stop, journal=journal)
    from polypool.infra.ray.remote_log import open_queue

    return InStorage(
        run_id=tracker.run_id,
        at=lease.there.folder,
        token=lease.there.token,
        folder=cache.folder(),
        queue=open_queue(journal, folder / LAST_STORED, stop),
    )


def _trainer(
    run: Run,
    tracker: Tracker,
    kept: ListedByRay | InStorage,
    session: Session,
    resources: Resources,
    *,
    assets: Mapping[str, Any],
    metric: str,
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
    from polypool.infra.ray.tuning import reporter

    work = Work(
        run=run,
        uri=tracker.uri,
        kept=kept,
        home=home(),
        threads=resources.cpus,
        terminal=sys.stderr.isatty(),
        log=mode(),
        trusted=trusted(),
        assets=ray.put(json.dumps(assets)),
    )
    return RunTrainer(
        work_on_ray,
        session=session,
        worker_counts=run.worker_counts,
        progress=kept.progress,
        refused=partial(refused, kept.folder),
        whole=kept.folder / FAULTS,
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
            checkpoint_config=CheckpointConfig(num_to_keep=KEPT),
            logging_config=LoggingConfig(log_level="WARNING"),
            callbacks=[reporter(metric)] if metric else [],
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
