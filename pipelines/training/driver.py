"""The process that drives a run, and what is put in order where it dies and another one goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from infra.errors import InputError
from infra.paths import home
from infra.process.lease import NAME, forget
from infra.process.watching import Attempt
from infra.ray.checkpoints import noted, told
from infra.tracking import Tracker, tracking_uri
from infra.trust import trust_flags
from pipelines.training.folder import AT, checkpoints_at, run_folder, take_run


def resume_command(run_id: str, trust: Sequence[str] = ()) -> str:
    """Return what to type to go on with a run that names modules which are trusted."""
    return " ".join(["python -m pipelines.train resume", run_id, *trust_flags(trust)])


@dataclass(frozen=True, kw_only=True)
class Driver:
    """What `infra.process.watching.watched` watches: the note is the id of a run, once that has begun.

    It progresses as long as it makes checkpoints, and holds the run while it lives.

    Attributes:
        train: trains a new run, which it keeps, or goes on with the one that is noted.
        trust: modules whose code the run may name.
    """

    train: Callable[[Attempt], None]
    trust: tuple[str, ...]

    def do(self, attempt: Attempt) -> None:
        """Train."""
        self.train(attempt)

    def progress(self, note: str) -> str | None:
        """Return the name of the last checkpoint."""
        with suppress(InputError):
            folder = run_folder(home(), note)
            return (noted(folder) or told(folder)) if note else None
        return None

    def died(self, note: str, process: int) -> str:
        """Free the run, and return the command that goes on with it."""
        if not note:
            return ""
        forget(run_folder(home(), note) / NAME, process)
        return resume_command(note, self.trust)

    def given_up(self, note: str) -> None:
        """End the run as failed, after what it logged and MLflow has not got."""
        if not note:
            return
        from pipelines.training.runs import send

        try:
            tracker = Tracker.attach(tracking_uri(home()), note, running=False)
            with take_run(home(), note, checkpoints_at(note, tracker.tag(AT))):
                if tracker.status() == "RUNNING":
                    send(tracker, "FAILED")
        except InputError as error:
            print(f"note: MLflow shows the run as running: {error}", file=sys.stderr)
