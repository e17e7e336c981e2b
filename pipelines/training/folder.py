"""A run's folder: its checkpoints, what MLflow has not got yet, and the lease of the one process that trains it.

Checkpoints may lie in object storage instead (POLYPOOL_RUNS), with another lease, which all machines see. The folder on
the machine of `train` has the rest.
"""

from __future__ import annotations

import secrets
import shutil
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from infra.errors import InputError
from infra.paths import runs
from infra.process.lease import NAME, Lease
from infra.ray.background import UNFINISHED
from infra.ray.checkpoints import SNAPSHOT, note, noted
from infra.storage.places import Url, place
from infra.tracking import Tracker

if TYPE_CHECKING:
    from infra.storage.claim import Claim

OUTBOX = "outbox"
"""In a run's folder, what it logged until MLflow has it."""


AT = "checkpoints_at"
"""The tag of a run whose checkpoints lie in object storage: the URL of the folder of its folder."""


def run_folder(home: Path, run_id: str) -> Path:
    """Return where a run keeps what MLflow has not got yet, and its checkpoints, unless these are in object storage."""
    named = runs()
    return (named if isinstance(named, Path) else home / "runs") / run_id


def new_runs_at() -> Url | None:
    """Return the URL below which runs that begin now keep their checkpoints; None where their folders do.

    Raises:
        InputError: the storage does not answer or refuses, to write and to delete, too.
    """
    named = runs()
    if isinstance(named, Url):
        _try_out(named)
        return named
    return None


@cache
def _try_out(url: Url) -> None:
    from infra.storage import conditional
    from infra.storage.destination import write_json
    from infra.storage.remote import delete

    trial = url / f"trial-{secrets.token_hex(8)}.json"
    write_json(trial, {})
    conditional.read(trial)  # by the client that leases need
    delete(trial)


def checkpoints_at(run_id: str, named: str) -> Url | None:
    """Return the URL of a run's checkpoints; None where they are in its folder.

    Args:
        run_id: the run.
        named: its tag `AT`, empty where it has none.

    Raises:
        InputError: the tag names no object storage.
    """
    if not named:
        return None
    found = place(named)
    if not isinstance(found, Url):
        raise InputError(f"run {run_id}: its tag {AT} names no object storage but {named!r}; set it right")
    return found / run_id


def take_run(home: Path, run_id: str, at: Url | None = None) -> RunLease:
    """Take the lease on a run's folder, which is made where it is not there, and that on its checkpoints.

    Args:
        home: the project's.
        run_id: the run.
        at: the URL of its checkpoints, where they have one.

    Raises:
        HeldError: another process trains the run, on this machine or another.
        InputError: nothing can be written there.
    """
    of = held_by_another(run_id)
    here = Lease.take(run_folder(home, run_id) / NAME, of=of)
    if at is None:
        return RunLease(here=here)
    from infra.storage.claim import Claim  # a process that watches a driver has no clients of storage

    try:
        return RunLease(here=here, there=Claim.take(at, of=of))
    except BaseException:
        here.release()
        raise


def held_by_another(run_id: str) -> str:
    """Return what is wrong with a run that somebody else trains."""
    return f"run {run_id} is being trained by another process"


@dataclass(frozen=True, kw_only=True)
class RunLease:
    """The leases on a run, which this process holds: of its folder, and of its checkpoints in object storage."""

    here: Lease
    there: Claim | None = None

    @property
    def lost(self) -> bool:
        """Whether another machine has taken it, as this one could not be seen at work."""
        return self.there is not None and self.there.lost

    def release(self) -> None:
        """Give them back."""
        if self.there is not None:
            self.there.release()
        self.here.release()

    def __enter__(self) -> RunLease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


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


def remove_orphans(folder: Path | Url) -> None:
    """Remove checkpoints that were begun and never taken into use; nobody may train the run meanwhile.

    Args:
        folder: of the run, or the URL of its checkpoints.

    Raises:
        InputError: the storage does not answer, or refuses.
    """
    if isinstance(folder, Url):
        from infra.storage.checkpoints import keep, newest

        return keep(folder, newest(folder))
    for each in folder.glob(f"{UNFINISHED}checkpoint_[0-9]*"):
        shutil.rmtree(each, ignore_errors=True)
    last = last_checkpoint(folder)
    if last is None or not last.is_dir() or not noted(folder):
        return
    names = (folder / SNAPSHOT).read_text()
    for each in folder.glob("checkpoint_[0-9]*"):
        if f'"{each.name}"' not in names:
            shutil.rmtree(each, ignore_errors=True)


def refuse_lost_at(tracker: Tracker, lease: Claim) -> None:
    """Refuse a run that has trained, whose checkpoint is not, or not whole, in object storage.

    Args:
        tracker: of the run.
        lease: on its checkpoints; not left behind where nobody had it before, or the next one would take it for the
            run's own.

    Raises:
        InputError: it cannot go on, or the storage does not answer or refuses.
    """
    from infra.storage.checkpoints import lacking, newest

    name = newest(at := lease.folder)
    gone = lacking(at, name) if name else []
    if name and not gone:
        return
    metrics = tracker.metrics()
    if not name and (not metrics or (lease.found and "epoch" not in metrics)):
        return  # it ended before its first checkpoint, and starts again
    lease.withdraw()
    what = f"{at / name} lacks {', '.join(gone)}" if name else f"there is no checkpoint in {at}"
    raise InputError(
        f"run {tracker.run_id} cannot go on: {what}. Bring it back (or set AWS_ENDPOINT_URL to the server that has "
        f"it), or train it anew: `python -m pipelines.rerun {tracker.run_id}`"
    )


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
