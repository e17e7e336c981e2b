"""A run on this machine: its folder, the leases on it, and the command that resumes it.

The folder holds the checkpoints and what MLflow has not received yet. With POLYPOOL_RUNS the checkpoints are in object
storage instead, under a second lease, which all machines see.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from polypool.infra.errors import InputError
from polypool.infra.lease.on_disk import NAME, DiskLease, Holder, holder_of
from polypool.infra.paths import home, runs
from polypool.infra.ray.session import on_cluster
from polypool.infra.spec import trust_flags
from polypool.infra.storage.places import Url, place
from polypool.infra.tracking import RunRecord, Tracker
from polypool.tasks.run import Run

if TYPE_CHECKING:
    from polypool.infra.lease.in_bucket import BucketLease

OUTBOX = "outbox"
"""In the folder of a run, its log until MLflow has all of it."""
AT = "checkpoints_at"
"""The tag of a run whose checkpoints are in object storage: the URL of the parent of its folder."""
Behind = Literal["", "alive", "nobody", "unknown"]
"""State of the process of a run: at work, dead, or unknown as folder and storage are elsewhere; empty if it ended."""


def run_folder(home: Path, run_id: str) -> Path:
    """Return the folder of a run on this machine."""
    named = runs()
    return (named if isinstance(named, Path) else home / "runs") / run_id


def resume_command(run_id: str, trust: Iterable[str] = ()) -> str:
    """Return the command line that resumes a run which names trusted modules."""
    return " ".join(["polypool train resume", run_id, *trust_flags(trust)])


def trains_here(run: Run, *, at: object, in_sweep: bool = False) -> bool:
    """Whether a run trains in the process that starts it, without Ray.

    One worker needs none of what Ray Train does for several, whose processes cost as much as a short run: a command
    that dies is started again (`polypool.infra.process.watching`), and a sweep has processes of its own.

    Args:
        run: its settings.
        at: the object storage of its checkpoints, if any.
        in_sweep: whether this process belongs to a sweep, and has the cores and the GPU of one worker.
    """
    return run.worker_counts == (1,) and at is None and (in_sweep or not on_cluster())


def new_runs_at() -> Url | None:
    """Return the URL below which new runs keep their checkpoints; None where they keep them in their folders.

    Raises:
        InputError: the storage does not answer, or refuses to write or delete.
    """
    named = runs()
    if isinstance(named, Url):
        _try_out(named)
        return named
    return None


@cache
def _try_out(url: Url) -> None:
    from polypool.infra.storage import conditional
    from polypool.infra.storage.remote import delete
    from polypool.infra.storage.transfer import write_json

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
        raise InputError(
            f"run {run_id}: its tag {AT} is not a URL of object storage but {named!r}; correct it"
        )
    return found / run_id


@dataclass(frozen=True, kw_only=True)
class RunLease:
    """The leases on a run that this process holds: on its folder, and on its checkpoints in object storage."""

    here: DiskLease
    there: BucketLease | None = None

    @property
    def lost(self) -> bool:
        """Whether another machine took the run over, as this one seemed dead."""
        return self.there is not None and self.there.lost

    def release(self) -> None:
        if self.there is not None:
            self.there.release()
        self.here.release()

    def __enter__(self) -> RunLease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def take_run(tracker: Tracker) -> RunLease:
    """Take the leases on a run; its folder is created.

    Raises:
        HeldError: another process trains the run, on this machine or another.
        InputError: the folder or the storage cannot be written.
    """
    at, of = checkpoints_at(tracker.run_id, tracker.tag(AT)), held_by_another(tracker.run_id)
    here = DiskLease.take(run_folder(home(), tracker.run_id) / NAME, of=of)
    if at is None:
        return RunLease(here=here)
    from polypool.infra.lease.in_bucket import BucketLease  # imports clients of object storage

    try:
        return RunLease(here=here, there=BucketLease.take(at, of=of))
    except BaseException:
        here.release()
        raise


@contextmanager
def at_work(tracker: Tracker) -> Iterator[None]:
    """Hold the lease on a run that trains nothing itself, such as a sweep, and end the run with the block.

    By the lease `polypool runs` sees whether the process that works for it is alive.

    Raises:
        HeldError: another process works for it.
        InputError: its folder cannot be written.
    """
    with take_run(tracker), tracker.ending():
        yield
    with suppress(OSError):  # a file that somebody has put there
        run_folder(home(), tracker.run_id).rmdir()


def held_by_another(run_id: str) -> str:
    return f"run {run_id} is being trained by another process"


def behind(record: RunRecord, *, home: Path) -> tuple[Behind, Holder | None]:
    """Return the state of the process that trains a run, and which it is, where that is known."""
    folder = run_folder(home, record.run_id)
    if holder := holder_of(folder / NAME):
        return "alive", holder
    if record.status != "RUNNING":
        return "", None
    at = checkpoints_at(record.run_id, record.tags.get(AT, ""))
    if at is None:
        return ("nobody" if folder.is_dir() else "unknown"), None
    from polypool.infra.lease.in_bucket import holder_in_bucket

    try:
        holder = holder_in_bucket(at)
    except InputError:
        return "unknown", None
    return ("alive" if holder else "nobody"), holder
