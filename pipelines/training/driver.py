"""The supervised process that trains a run, and its replacement when it dies."""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from polypool.infra.errors import InputError
from polypool.infra.files import atomic, existing, make_folder
from polypool.infra.lease.on_disk import NAME, free_of_dead
from polypool.infra.paths import home
from polypool.infra.process.command import NamedRun
from polypool.infra.process.watching import Attempt
from polypool.infra.ray.session import ray_beside
from polypool.infra.tracking import Tracker, resolve_run, tracking_uri
from polypool.infra.tracking.tracker import flattened
from polypool.pipelines.training.checkpoints.in_folder import last_name
from polypool.pipelines.training.run_folder import (
    new_runs_at,
    resume_command,
    run_folder,
    take_run,
    trains_here,
)
from polypool.tasks.run import Run, modules, to_params

RUN_ID_FILE = "--run-id-file"
_ID = re.compile(rb"[0-9a-f]{32}\r?\n?")
_MOST_BYTES = 1 << 10


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Resume an interrupted run from its last checkpoint."""

    run_id: NamedRun = ""
    trust: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A module whose code the run may name, as module:Name; repeatable."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The id of a run and how it ended, as text."""

    run_id: str
    how: str = "finished"


@dataclass(frozen=True, kw_only=True)
class Driver:
    """The work that `polypool.infra.process.watching.watched` supervises: a new checkpoint is progress.

    Processes leave the id of the run to those after them.

    Attributes:
        work: a new run, or one to resume.
        file: keeps the id of a new run; where it exists, that run is resumed.
    """

    work: Run | Resume
    file: Path | None = None

    @property
    def trust(self) -> tuple[str, ...]:
        """Modules whose code the run may name."""
        return self.work.trust if isinstance(self.work, Resume) else modules(self.work)

    @property
    def retries(self) -> int:
        """The number of faults in a row, without a checkpoint between them, that are retried."""
        return Run.retries if isinstance(self.work, Resume) else self.work.retries

    def do(self, attempt: Attempt) -> Trained:
        """Train a new run, or resume one: that of the command, of an earlier process or of the file.

        Raises:
            InputError: the file holds the id of another run; also as `start` and `resume` do.
        """
        work, file = self.work, self.file
        if attempt.note:
            work, file = Resume(run_id=attempt.note, trust=self.trust), None
        if file and isinstance(work, Resume):
            raise InputError(f"{RUN_ID_FILE} is for a recipe; leave it out where the id is known")
        if file and isinstance(work, Run) and (run_id := read_run_id(file, work)):
            work = Resume(run_id=run_id)
        if isinstance(work, Resume):
            work = replace(work, run_id=resolve_run(tracking_uri(home()), work.run_id))
            from polypool.pipelines.training.launch import resume

            attempt.keep(work.run_id)
            before = Tracker.attach(tracking_uri(home()), work.run_id, running=False).status()
            how = "had finished before, and is left as it is" if before == "FINISHED" else "finished"
            return Trained(run_id=resume(work.run_id, trust=work.trust), how=how)
        here = trains_here(work, at=new_runs_at())  # unreachable storage is an error before Ray starts
        with nullcontext() if here else ray_beside():  # Ray starts while torch is imported
            from polypool.pipelines.training.launch import start

            def note(run_id: str) -> None:
                if file:
                    make_folder(file.parent)
                    with atomic(file) as written:
                        written.write(f"{run_id}\n".encode())
                attempt.keep(run_id)

            return Trained(run_id=start(work, begun=note))

    def progress(self, note: str) -> str | None:
        """Return the name of the last checkpoint."""
        with suppress(InputError):
            return last_name(run_folder(home(), note)) if note else None
        return None

    def died(self, note: str, process: int) -> str:
        """Release the lease of a dead process, and return the command that resumes the run."""
        if not note:
            return ""
        free_of_dead(run_folder(home(), note) / NAME, process)
        return resume_command(note, self.trust)

    def given_up(self, note: str) -> None:
        """Mark the run as failed, after sending its log to MLflow."""
        try:
            tracker = Tracker.attach(tracking_uri(home()), note, running=False) if note else None
            if tracker is None:
                return
            with take_run(tracker):
                if tracker.status() == "RUNNING":
                    from polypool.pipelines.training.recording import (
                        send,
                    )  # imports numpy, which a fork must not have

                    send(tracker, "FAILED")
        except InputError as error:
            print(f"note: MLflow shows the run as running: {error}", file=sys.stderr)


def read_run_id(file: Path, run: Run) -> str | None:
    """Return the id of the run that the same command started before; None where the file does not exist.

    Args:
        file: holds the id.
        run: the settings of the command.

    Raises:
        InputError: the file holds no id; MLflow does not know the run, or does not answer; the run has other settings.
    """
    if not file.exists():
        return None
    with existing(file, what="the id of a run").open("rb") as opened:
        data = opened.read(_MOST_BYTES)
    if not _ID.fullmatch(data):
        raise InputError(
            f"{file}: holds no id of a run, which is 32 of 0-9 and a-f; name another file after {RUN_ID_FILE}"
        )
    run_id = data.decode().strip()
    tracker = Tracker.attach(tracking_uri(home()), run_id, running=False)
    from polypool.pipelines.training.recording import recorded_run  # likewise

    then = recorded_run(tracker)
    if then != run:
        before, now = (dict(flattened(to_params(each))) for each in (then, run))
        other = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
        raise InputError(
            f"{file}: run {run_id} was begun with other settings ({', '.join(other)}); name another file after "
            f"{RUN_ID_FILE} for a new run, or go on with that one: `polypool train resume {run_id}`"
        )
    return run_id
