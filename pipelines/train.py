"""`python -m pipelines.train RECIPE [--overrides]`: train a run, on this machine or as a Ray job.

RECIPE is a name, or a file in YAML or JSON: what differs from the recipe that it names as `base`, or a whole run, such
as the `run.json` that every run keeps. `--list` shows the recipes and the published numbers they aim at, `RECIPE
--help` its settings, and `resume RUN_ID` goes on with an interrupted run from its last checkpoint; a finished one is
left as it is. With `RECIPE --run-id-file FILE` the id is written there, and the same command, given again, goes on with
that run.

What trains is a child of this process, which begins it again where it was killed, as long as there is a new checkpoint
between two faults (`--retries`).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from infra.errors import InputError, command
from infra.paths import home
from infra.process.watching import Attempt, watched
from infra.ray.session import ray_beside
from pipelines.config import read_config, recipe_list
from pipelines.recipe import Ensemble
from pipelines.training.driver import Driver
from pipelines.training.folder import new_runs_at
from pipelines.training.run_file import FLAG, begun_by, take_flag, write_run_id
from tasks.run import Run, modules


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Go on with a run that was interrupted, from its last checkpoint."""

    run_id: tyro.conf.Positional[str]
    trust: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A module whose code the run may name, as module:Name; once for each."""


def parse(words: list[str]) -> Run | Ensemble | Resume:
    """Read the command line: a recipe with overrides, or `resume RUN_ID`."""
    if not words or words[0] in ("--help", "-h", "--list"):
        print(f"{inspect.getdoc(sys.modules[__name__])}\n\n{recipe_list()}")
        raise SystemExit(0 if words else 2)
    name, *rest = words
    if name == "resume":
        return tyro.cli(Resume, args=rest, prog="python -m pipelines.train resume")
    return read_config(name, rest)


def noted(work: Run | Ensemble | Resume, file: Path) -> Run | Resume:
    """Return what is left to do of a run whose id a file is to hold: all of it, or to go on with it.

    Raises:
        InputError: it is no single new run, or not the run of that file.
    """
    if isinstance(work, Ensemble):
        raise InputError(
            f"{FLAG} is for one run, not an ensemble; train its members: {', '.join(work.members)}"
        )
    if isinstance(work, Resume):
        raise InputError(f"{FLAG} is for a recipe; leave it out where the id is known")
    run_id = begun_by(file, work)
    return Resume(run_id=run_id) if run_id else work


def train(
    work: Run | Ensemble | Resume,
    file: Path | None = None,
    *,
    begun: Callable[[str], None] = lambda run_id: None,
) -> tuple[str, str]:
    """Do what the command line asks for; return the id of the run, and how it came to its end.

    Args:
        work: what `parse` returned.
        file: where a run that begins writes its id, and one that has begun before finds it.
        begun: called with the id of a run, but for an ensemble's, once it can be gone on with.
    """
    work = noted(work, file) if file else work
    if isinstance(work, Resume):
        from infra.tracking import Tracker, tracking_uri
        from pipelines.training.runs import resume

        begun(work.run_id)
        before = Tracker.attach(tracking_uri(home()), work.run_id, running=False).status()
        said = "had finished before, and is left as it is" if before == "FINISHED" else "finished"
        return resume(work.run_id, trust=work.trust), said
    new_runs_at()  # storage that cannot be reached is said before Ray starts
    with ray_beside():  # Ray starts in seconds, and torch is imported in seconds
        from pipelines.evaluate import start_ensemble
        from pipelines.training.runs import start

        if isinstance(work, Ensemble):
            return start_ensemble(work), "finished"

        def note(run_id: str) -> None:
            if file:
                write_run_id(file, run_id)
            begun(run_id)

        return start(work, begun=note), "finished"


def train_and_show(
    work: Run | Ensemble | Resume,
    file: Path | None = None,
    *,
    begun: Callable[[str], None] = lambda run_id: None,
) -> None:
    """Train, and print where to look; see `train`."""
    run_id, said = train(work, file, begun=begun)
    print(f"run {run_id} {said}")
    from infra.tracking import Tracker, tracking_uri
    from pipelines.training.recording.artifacts import printed

    try:
        tracker = Tracker.attach(tracking_uri(home()), run_id, running=False)
        protocol, metrics = tracker.tag("protocol"), tracker.metrics()
    except InputError as error:  # the server went away meanwhile; the training is done all the same
        print(f"its scores cannot be shown now: {error}")
        return
    for name in sorted(metrics):
        if name.startswith((f"{protocol}/", "test/")):
            print(f"  {name:<24} {printed(metrics[name])}")


@command
def main() -> None:
    """Train in a child of this process, and again where it dies."""
    file, words = take_flag(sys.argv[1:])
    work = parse(words)  # a wrong word is refused before torch is imported, which takes seconds
    if isinstance(work, Ensemble):
        return train_and_show(work, file)
    trust = work.trust if isinstance(work, Resume) else modules(work)

    def go_on(attempt: Attempt) -> None:
        if attempt.note:
            train_and_show(Resume(run_id=attempt.note, trust=trust), begun=attempt.keep)
        else:
            train_and_show(work, file, begun=attempt.keep)

    retries = Run.retries if isinstance(work, Resume) else work.retries
    watched(Driver(train=go_on, trust=trust), retries=retries)


if __name__ == "__main__":
    main()
