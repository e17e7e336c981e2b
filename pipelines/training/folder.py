"""A run's folder: its checkpoints, what MLflow has not got yet, and the lease of the one process that trains it."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from infra.errors import InputError
from infra.process.lease import NAME, Lease
from infra.ray.background import UNFINISHED
from infra.ray.checkpoints import SNAPSHOT, note, noted
from infra.tracking import Tracker

OUTBOX = "outbox"
"""In a run's folder, what it logged until MLflow has it."""


def run_folder(home: Path, run_id: str) -> Path:
    """Return where a run keeps its checkpoints, and what MLflow has not got yet."""
    return home / "runs" / run_id


def take_run(home: Path, run_id: str) -> Lease:
    """Take the lease on a run's folder, which is made where it is not there.

    Raises:
        HeldError: another process trains the run, on this machine or another.
        InputError: nothing can be written there.
    """
    return Lease.take(run_folder(home, run_id) / NAME, of=f"run {run_id} is being trained by another process")


def last_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint that a run goes on with, which may be gone; None where it has made none.

    Raises:
        InputError: what Ray Train noted of the checkpoints is damaged.
    """
    name = noted(folder)
    return folder / name if name else max(folder.glob("checkpoint_[0-9]*"), default=None)


def take_up(folder: Path) -> None:
    """Let a run go on with its last whole checkpoint where nothing usable was noted of any, as of a full disk."""
    from infra.checkpoint import is_whole

    with suppress(InputError):
        if noted(folder):
            return
    for each in sorted(folder.glob("checkpoint_[0-9]*"), reverse=True):
        if is_whole(each):
            return note(folder, each.name)


def remove_orphans(folder: Path) -> None:
    """Remove checkpoints that were begun and never taken into use; nobody may train the run meanwhile."""
    for each in folder.glob(f"{UNFINISHED}checkpoint_[0-9]*"):
        shutil.rmtree(each, ignore_errors=True)
    last = last_checkpoint(folder)
    if last is None or not last.is_dir() or not noted(folder):
        return
    names = (folder / SNAPSHOT).read_text()
    for each in folder.glob("checkpoint_[0-9]*"):
        if f'"{each.name}"' not in names:
            shutil.rmtree(each, ignore_errors=True)


def refuse_lost(tracker: Tracker, folder: Path) -> None:
    """Refuse a run that has trained, whose checkpoint is not, or not whole, in its folder.

    Raises:
        InputError: it cannot go on.
    """
    from infra.checkpoint import FILES

    try:
        last = last_checkpoint(folder)
        missing = [name for name in FILES if last is None or not (last / name).is_file()]
        what = f"{last} lacks {', '.join(missing)}" if last else f"there is no checkpoint in {folder}"
    except InputError as error:
        last, missing, what = folder, FILES, str(error)
    if last is None:
        metrics = tracker.metrics()
        began = (folder / OUTBOX).is_dir()  # it ended before its first checkpoint, and starts again
        if not metrics or (began and "epoch" not in metrics):
            return
    if missing:
        raise InputError(
            f"run {tracker.run_id} cannot go on: {what}. Bring the folder back (or set POLYPOOL_HOME to where it is), "
            f"or train it anew: `python -m pipelines.rerun {tracker.run_id}`"
        )
