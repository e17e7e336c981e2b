"""Training of a run on Ray Train workers, which Ray restarts from the last checkpoint."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from polypool.infra.errors import InputError
from polypool.infra.files import disk_fault
from polypool.infra.paths import home
from polypool.infra.process.output import mode
from polypool.infra.process.progress import say
from polypool.infra.ray import Resources, ray_session, reporter, waiting_for_cores
from polypool.infra.spec import trusted
from polypool.infra.storage import Url, delete, exists, filesystem, read_bytes
from polypool.infra.tracking import Log, Tracker
from polypool.pipelines.training.checkpoints.kept import KEPT, ByRay, time_stamp
from polypool.pipelines.training.run_folder import resume_command
from polypool.pipelines.training.worker import REFUSED, Work, input_error, work_on_ray
from polypool.tasks.run import Run, modules

if TYPE_CHECKING:
    from ray.train.torch import TorchTrainer

_PATIENCE = "86400"  # seconds that workers wait for cores of others, which Ray calls a fault after 60
_RESIZE_SECONDS = 10.0
"""Seconds between two looks for room for more workers."""


def train_on_ray(
    run: Run,
    tracker: Tracker,
    *,
    assets: Mapping[str, Any],
    at: Path | Url,
    last: str,
    stop: Path | Url,
    journal: Callable[[], Log],
    metric: str,
    until_stopped: Callable[[Callable[[], bool]], None],
) -> None:
    """Train a run on Ray Train workers; errors as of `fit`.

    Args:
        run: its complete description.
        tracker: of the run.
        assets: of its adapter.
        at: the folder or URL of its checkpoints.
        last: the path of the checkpoint to begin with; empty for none.
        stop: a file that, once it exists, ends the workers after a checkpoint.
        journal: opens the run's log.
        metric: reported to the scheduler of the sweep that this is a trial of; empty for none.
        until_stopped: calls what trains, which SIGTERM ends after a checkpoint.
    """
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", _PATIENCE)
    delete(at / REFUSED)
    resume = resume_command(tracker.run_id, modules(run))

    def train() -> bool:
        try:
            finished = bool(in_thread(trainer.fit).return_value)
        except Exception as error:
            finished, failure = False, error
        else:
            failure = None
        if exists(at / REFUSED):  # no restart can help
            raise InputError(read_bytes(at / REFUSED).decode()) from failure
        if failure is not None:
            raise _plain_error(failure, at, resume) from failure
        return finished

    with ray_session(dashboard=True):
        resources = Resources.plan(run.workers, fewest=run.worker_counts[0], cpus=run.cpus)
        kept = ByRay(at=at, stop=stop, journal=journal, start=last)
        trainer = _trainer(run, tracker, kept, resources, assets=assets, metric=metric)
        need = f"{run.workers} worker{'s' if run.workers > 1 else ''} of Ray to start"
        say(f"waiting for {need}", what=need)
        with waiting_for_cores(run.worker_counts[0] * resources.cpus):
            until_stopped(train)


def in_thread(call: Callable[[], Any]) -> Any:
    """Return what a call returns; it is made outside the main thread, whose signal handlers stay as they are."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="Ray Train", daemon=True).start()
    return future.result()


def _trainer(
    run: Run,
    tracker: Tracker,
    kept: ByRay,
    resources: Resources,
    *,
    assets: Mapping[str, Any],
    metric: str,
) -> TorchTrainer:
    import ray
    import ray.train
    from ray.train.torch import TorchTrainer
    from ray.train.v2.api.config import LoggingConfig

    train: Any = ray.train  # the types of its names are those of an earlier version

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
    system, path = filesystem(kept.at)
    return TorchTrainer(
        cast("Any", work_on_ray),
        train_loop_config={"work": work},
        scaling_config=train.ScalingConfig(
            num_workers=(run.worker_counts[0], run.workers) if len(run.worker_counts) > 1 else run.workers,
            elastic_resize_monitor_interval_s=_RESIZE_SECONDS,
            use_gpu=resources.gpu,
            resources_per_worker={"CPU": resources.cpus},
        ),
        run_config=train.RunConfig(
            name=f"ray-{time_stamp()}",
            storage_path=path,
            storage_filesystem=system,
            failure_config=train.FailureConfig(max_failures=run.retries),
            checkpoint_config=train.CheckpointConfig(num_to_keep=KEPT),
            logging_config=LoggingConfig(log_level="WARNING"),
            callbacks=[reporter(metric)] if metric else [],
        ),
    )


def _plain_error(error: BaseException, at: Path | Url, resume: str) -> BaseException:
    """Return the error to raise for a failed training: a one-line message for known causes."""
    for failure in (*getattr(error, "worker_failures", {}).values(), error):
        if cause := input_error(failure):
            return InputError(str(cause))
        if isinstance(at, Path) and (why := disk_fault(failure, at)):
            return InputError(f"{why}, then `{resume}` goes on from the last checkpoint")
    return RuntimeError(f"training failed; `{resume}` goes on: {error}")
