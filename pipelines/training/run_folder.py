"""A run on this machine: its folder, the lock on it, and the command that resumes it.

The folder holds the log and the checkpoints. Where POLYPOOL_RUNS is a URL of object storage, Ray Train keeps the
checkpoints there, and machines that share no folder can resume the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from polypool.infra.errors import InputError
from polypool.infra.locks import NAME, Lock, holder_of
from polypool.infra.paths import home, runs
from polypool.infra.ray import on_cluster
from polypool.infra.spec import trust_flags
from polypool.infra.storage import Url, place
from polypool.infra.tracking import RunRecord, Tracker
from polypool.tasks.run import Run

OUTBOX = "outbox"
"""In the folder of a run, its log until MLflow has all of it."""
AT = "checkpoints_at"
"""The tag of a run whose checkpoints are in object storage: the URL of the parent of its folder."""
Behind = Literal["", "alive", "nobody", "unknown"]
"""Process state of a run: alive, nobody (it died), unknown (its folder is on another machine) or empty (it ended)."""


def run_folder(home: Path, run_id: str) -> Path:
    """Return the folder of a run on this machine."""
    named = runs()
    return (named if isinstance(named, Path) else home / "runs") / run_id


def resume_command(run_id: str, trust: Iterable[str] = ()) -> str:
    """Return the command line that resumes a run which names trusted modules."""
    return " ".join(["polypool train resume", run_id, *trust_flags(trust)])


def trains_here(run: Run, *, at: object, in_sweep: bool = False) -> bool:
    """Whether a run trains in the process that starts it, without Ray.

    One worker needs none of what Ray Train does for several, whose processes cost as much as a short run; a sweep has
    processes of its own.

    Args:
        run: its settings.
        at: the object storage of its checkpoints, if any.
        in_sweep: whether this process belongs to a sweep, and has the cores and the GPU of one worker.
    """
    return run.worker_counts == (1,) and at is None and (in_sweep or not on_cluster())


def new_runs_at() -> Url | None:
    """Return the URL below which new runs keep their checkpoints; None where they keep them in their folders."""
    named = runs()
    return named if isinstance(named, Url) else None


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


def take_run(tracker: Tracker) -> Lock:
    """Lock a run; its folder is created.

    Raises:
        HeldError: another process trains the run.
        InputError: the folder cannot be written.
    """
    of = f"run {tracker.run_id} is being trained by another process"
    return Lock(run_folder(home(), tracker.run_id) / NAME, of=of)


@contextmanager
def at_work(tracker: Tracker) -> Iterator[None]:
    """Lock a run that trains nothing itself, such as a sweep, and end the run with the block.

    By the lock `polypool runs` sees whether the process that works for it is alive.

    Raises:
        HeldError: another process works for it.
        InputError: its folder cannot be written.
    """
    with take_run(tracker), tracker.ending():
        yield
    with suppress(OSError):  # a file that somebody has put there
        run_folder(home(), tracker.run_id).rmdir()


def behind(record: RunRecord, *, home: Path) -> tuple[Behind, str]:
    """Return the state of the process that trains a run, and which it is, where that is known."""
    folder = run_folder(home, record.run_id)
    if holder := holder_of(folder / NAME):
        return "alive", holder
    if record.status != "RUNNING":
        return "", ""
    return ("nobody" if folder.is_dir() else "unknown"), ""
