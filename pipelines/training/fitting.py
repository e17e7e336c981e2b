"""Training of a tracked run: in this process where it has one worker, else on Ray Train workers."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from polypool.infra.compute.device import best_device
from polypool.infra.errors import FaultError, InputError
from polypool.infra.files import disk_fault, make_folder
from polypool.infra.paths import home
from polypool.infra.process.stopping import Stopped, graceful_stop, resume_hint
from polypool.infra.ray.session import local_cores
from polypool.infra.tracking import Tracker
from polypool.infra.tracking.journal import Journal
from polypool.pipelines.training.checkpoints import in_folder, in_storage
from polypool.pipelines.training.checkpoints.in_folder import InFolder
from polypool.pipelines.training.on_ray import train_on_ray
from polypool.pipelines.training.recording import KILLED_SECONDS, finish_soon
from polypool.pipelines.training.run_folder import (
    OUTBOX,
    RunLease,
    resume_command,
    run_folder,
    trains_here,
)
from polypool.pipelines.training.worker import set_up, train
from polypool.tasks.adapter import TaskAdapter
from polypool.tasks.run import Run, modules

CHECKPOINT_SECONDS = 20.0
"""How long SIGTERM waits for a checkpoint; batch systems kill after 30 seconds."""


@dataclass(frozen=True, kw_only=True)
class TrialOptions:
    """A trial of a sweep, in a process that has the cores and the GPU of one worker.

    Attributes:
        stop: a file that, once it exists, ends the training after a checkpoint.
        metric: on `val`, by which poor trials are stopped early; empty where none are.
    """

    stop: Path
    metric: str = ""


def fit(
    run: Run,
    tracker: Tracker,
    *,
    lease: RunLease,
    adapter: TaskAdapter,
    trial: TrialOptions | None = None,
) -> None:
    """Train a tracked run, from its last checkpoint where it has one.

    SIGTERM ends it after a checkpoint, as does a file `stop` in the run's folder.

    Args:
        run: its complete description.
        tracker: of the run.
        lease: on the run.
        adapter: its task.
        trial: of the sweep that trains it, if any.

    Raises:
        InputError: the run cannot be trained with this input, or the disk is full.
        FaultError: something failed, and another attempt may succeed.
        RuntimeError: workers on Ray failed more often in a row, without progress, than `run.retries` allows.
        Stopped: a signal came, or the file `stop` was created.
    """
    folder = make_folder(run_folder(home(), tracker.run_id))
    stop = trial.stop if trial else folder / "stop"
    if trial is None:
        stop.unlink(missing_ok=True)
    _remove_orphans(folder, lease)
    journal = partial(open_journal, folder / OUTBOX, tracker.uri, tracker.run_id)
    until_stopped = partial(_until_stopped, stop=stop, tracker=tracker)
    with resume_hint(resume_command(tracker.run_id, modules(run))):
        if trains_here(run, at=lease.there, in_sweep=trial is not None):
            kept = InFolder(folder=folder, stop=stop, journal=journal)
            until_stopped(lambda: _train_here(run, adapter, tracker, kept, trial))
        else:
            train_on_ray(
                run,
                tracker,
                assets=adapter.assets,
                lease=lease,
                stop=stop,
                journal=journal,
                metric=trial.metric if trial else "",
                until_stopped=until_stopped,
            )
    _remove_orphans(folder, lease)


def _remove_orphans(folder: Path, lease: RunLease) -> None:
    if lease.there is None:
        in_folder.remove_unlisted(folder)
    else:
        in_storage.keep(lease.there.folder, in_storage.newest(lease.there.folder))


def open_journal(folder: Path, uri: str, run_id: str) -> Journal:
    """Open the log of a run, which the driver sends to MLflow."""
    return Journal(folder, lambda: Tracker.attach(uri, run_id, running=False))


def _until_stopped(train: Callable[[], bool], *, stop: Path, tracker: Tracker) -> None:
    """Train until SIGTERM, or the file `stop`, ends it after a checkpoint.

    Args:
        train: returns whether it got to the end, as it may after a request that comes in the final test.
        stop: as of `fit`.
        tracker: of the run.

    Raises:
        Stopped: a request ended the training; also where its workers were killed then.
    """
    finished, marked = False, []

    def request() -> None:
        stop.touch()
        marked.append(finish_soon(tracker, "KILLED"))  # this process may be killed before its end

    try:
        with graceful_stop(request, seconds=CHECKPOINT_SECONDS):
            finished = train()
        if not finished:
            raise Stopped
    except Stopped:
        if not finished:
            raise
        for thread in marked:  # else it could mark the run after its end
            thread.join(KILLED_SECONDS)
    except (Exception, SystemExit) as error:
        if stop.exists() or not stop.parent.is_dir():
            raise Stopped from error
        raise


def _train_here(
    run: Run, adapter: TaskAdapter, tracker: Tracker, kept: InFolder, trial: TrialOptions | None
) -> bool:
    """Train in this process; an error that another process may not meet is raised as `FaultError`.

    Returns False where it was stopped before its end.
    """
    set_up(threads=min(run.cpus, local_cores()))
    if trial and trial.metric:
        from polypool.infra.ray.tuning import report

        kept.reported = partial(report, trial.metric)
    try:
        return train(run, adapter, kept, uri=tracker.uri, device=best_device())
    except InputError:
        raise
    except Exception as error:
        resume = resume_command(tracker.run_id, modules(run))
        if why := disk_fault(error, kept.folder):
            raise InputError(f"{why}, then `{resume}` goes on from the last checkpoint") from error
        if trial is None:
            traceback.print_exc()
        raise FaultError(f"training failed; `{resume}` goes on: {error}") from error
