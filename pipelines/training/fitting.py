"""Training of a tracked run: in this process where it has one worker, else on Ray Train workers."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from polypool.infra.compute.device import best_device
from polypool.infra.errors import InputError
from polypool.infra.files import disk_fault, make_folder
from polypool.infra.paths import home
from polypool.infra.process.stopping import Stopped, graceful_stop, resume_hint
from polypool.infra.ray import local_cores, report
from polypool.infra.storage import Url, delete, exists, write_bytes
from polypool.infra.tracking import Log, Tracker
from polypool.pipelines.training.checkpoints.kept import InFolder, remove_old
from polypool.pipelines.training.on_ray import train_on_ray
from polypool.pipelines.training.record import KILLED_SECONDS, finish_soon
from polypool.pipelines.training.run_folder import OUTBOX, resume_command, run_folder, trains_here
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
    adapter: TaskAdapter,
    at: Url | None = None,
    last: Path | str | None = None,
    trial: TrialOptions | None = None,
) -> None:
    """Train a tracked run, from its last checkpoint where it has one.

    SIGTERM and Ctrl-C end it after a checkpoint, as does a file `stop` in the run's folder.

    Args:
        run: its complete description.
        tracker: of the run.
        adapter: its task.
        at: the URL of its checkpoints; None where they are in its folder.
        last: the checkpoint to begin with, if any.
        trial: of the sweep that trains it, if any.

    Raises:
        InputError: the run cannot be trained with this input, or the disk is full.
        RuntimeError: training failed, or workers on Ray failed more often than `run.retries` allows.
        Stopped: a signal came, or the file `stop` was created.
    """
    folder = make_folder(run_folder(home(), tracker.run_id))
    stop: Path | Url = trial.stop if trial else (at or folder) / "stop"
    if trial is None:
        delete(stop)
    journal = partial(Log, folder / OUTBOX)
    until_stopped = partial(_until_stopped, stop=stop, tracker=tracker)
    with resume_hint(resume_command(tracker.run_id, modules(run))):
        if isinstance(stop, Path) and trains_here(run, at=at, in_sweep=trial is not None):
            kept = InFolder(folder=folder, stop=stop, journal=journal, start=Path(last) if last else None)
            until_stopped(lambda: _train_here(run, adapter, tracker, kept, trial))
        else:
            train_on_ray(
                run,
                tracker,
                assets=adapter.assets,
                at=at or folder,
                last=str(last or ""),
                stop=stop,
                journal=journal,
                metric=trial.metric if trial else "",
                until_stopped=until_stopped,
            )
    remove_old(at or folder)


def _until_stopped(train: Callable[[], bool], *, stop: Path | Url, tracker: Tracker) -> None:
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
        os.write(2, b"stopping after a checkpoint; a second signal ends at once\n")
        write_bytes(stop, b"")
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
        if exists(stop) or (isinstance(stop, Path) and not stop.parent.is_dir()):
            raise Stopped from error
        raise


def _train_here(
    run: Run, adapter: TaskAdapter, tracker: Tracker, kept: InFolder, trial: TrialOptions | None
) -> bool:
    """Train in this process; return False where it was stopped before its end."""
    set_up(threads=min(run.cpus, local_cores()))
    if trial and trial.metric:
        kept.reported = partial(report, trial.metric)
    try:
        return train(run, adapter, kept, uri=tracker.uri, device=best_device())
    except InputError:
        raise
    except Exception as error:
        resume = resume_command(tracker.run_id, modules(run))
        if why := disk_fault(error, kept.folder):
            raise InputError(f"{why}, then `{resume}` goes on from the last checkpoint") from error
        if trial:
            raise
        raise RuntimeError(f"training failed; `{resume}` goes on: {error}") from error
