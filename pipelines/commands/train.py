"""`polypool train RECIPE [--overrides]`: Train a run, on this machine or as a Ray job.

RECIPE is a name, or a YAML or JSON file: changes to the recipe that it names as `base`, or a complete run, such as the
`run.json` of every run. `--list` shows all recipes and the published numbers they aim at, `RECIPE --help` the settings.
`resume RUN_ID` resumes an interrupted run from its last checkpoint; a finished one is not changed. `rerun RUN_ID`
trains a run again with the settings recorded in MLflow, and shows the differences. `RECIPE --run-id-file FILE` writes
the run's id to a file; the same command, repeated, resumes that run.

SIGTERM and Ctrl-C write a checkpoint first. Failed Ray workers are restarted from the last checkpoint (`--retries`).
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from polypool.infra.errors import InputError
from polypool.infra.files import atomic, existing, make_folder
from polypool.infra.paths import here, home
from polypool.infra.process.command import NamedRun, Repeated, command
from polypool.infra.process.output import print_next
from polypool.infra.tracking import Tracker, flattened, resolve_run, tracking_uri
from polypool.pipelines.recipes.arguments import read_config, recipe_list
from polypool.pipelines.recipes.load import Ensemble
from polypool.tasks.run import Run, to_params

RUN_ID_FILE = "--run-id-file"


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Resume an interrupted run from its last checkpoint."""

    run_id: NamedRun = ""
    trust: Repeated = ()
    """A module whose code the run may name, as module:Name; repeatable."""


@dataclass(frozen=True, kw_only=True)
class Rerun:
    """Train a run again with the settings recorded in MLflow, and show the differences.

    Attributes:
        run_id: a trained run.
        dry_run: show the differences without training.
        trust: trusted module whose code the run may name as module:Name; repeatable.
    """

    run_id: NamedRun = ""
    dry_run: bool = False
    trust: Repeated = ()


def parse(words: list[str]) -> Run | Ensemble | Resume | Rerun:
    """Read the command line: a recipe with overrides, `resume RUN_ID` or `rerun RUN_ID`."""
    if not words or words[0] in ("--help", "-h", "--list"):
        listed = recipe_list(everything=words == ["--list"])
        print(f"{inspect.getdoc(sys.modules[__name__])}\n\n{listed}")
        raise SystemExit(0 if words else 2)
    name, *rest = words
    if name in ("resume", "rerun"):
        return tyro.cli(Resume if name == "resume" else Rerun, args=rest, prog=f"polypool train {name}")
    return read_config(name, rest)


def take_run_id_file(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Return the file of `--run-id-file`, if any, and the other words.

    Raises:
        SystemExit: with code 2, after a message: the flag has no value.
    """
    parser = argparse.ArgumentParser(prog="polypool train RECIPE", add_help=False, allow_abbrev=False)
    parser.add_argument(RUN_ID_FILE, type=Path, metavar="FILE")
    found, rest = parser.parse_known_args(words)
    return (here() / found.run_id_file if found.run_id_file else None), rest


def train(work: Run | Resume, file: Path | None = None) -> tuple[str, str]:
    """Train a new run, or resume one; return its id and its final state.

    Args:
        work: the run.
        file: file for the id of a new run; if it exists, that run is resumed.

    Raises:
        InputError: the file holds the id of another run; also as `start` and `resume` do.
    """
    from polypool.pipelines.training.train import resume, start  # imports torch

    if file and isinstance(work, Resume):
        raise InputError(f"{RUN_ID_FILE} is for a recipe; omit it with a known id")
    if file and isinstance(work, Run) and (found := read_run_id(file, work)):
        work = Resume(run_id=found)
    if isinstance(work, Resume):
        run_id = resolve_run(tracking_uri(home()), work.run_id)
        before = Tracker.attach(tracking_uri(home()), run_id, running=False).status()
        how = "had finished before, and is not changed" if before == "FINISHED" else "finished"
        return resume(run_id, trust=work.trust), how

    def note(run_id: str) -> None:
        if file:
            make_folder(file.parent)
            with atomic(file) as written:
                written.write(f"{run_id}\n".encode())

    return start(work, begun=note), "finished"


def read_run_id(file: Path, run: Run) -> str | None:
    """Return the id of the run that the same command started before; None if the file does not exist.

    Raises:
        InputError: the file holds no id; MLflow does not know the run, or does not answer; or the run has other
            settings.
    """
    if not file.exists():
        return None
    data = existing(file, what="the id of a run").read_bytes()
    if not re.fullmatch(rb"[0-9a-f]{32}\r?\n?", data):
        raise InputError(
            f"{file}: holds no id of a run, which is 32 of 0-9 and a-f; name another file after {RUN_ID_FILE}"
        )
    run_id = data.decode().strip()
    tracker = Tracker.attach(tracking_uri(home()), run_id, running=False)
    from polypool.pipelines.recipes.load import with_published
    from polypool.pipelines.training.record import recorded_run

    then, run = recorded_run(tracker), with_published(run)
    if then != run:
        before, now = (dict(flattened(to_params(each))) for each in (then, run))
        other = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
        raise InputError(
            f"{file}: run {run_id} was started with other settings ({', '.join(other)}); name another file after "
            f"{RUN_ID_FILE} for a new run, or resume that one: `polypool train resume {run_id}`"
        )
    return run_id


def show(run_id: str, how: str = "finished") -> None:
    """Print a run's final state and scores."""
    print(f"run {run_id} {how}")
    from polypool.pipelines.comparison.queries import run_doubts
    from polypool.pipelines.training.record import printed

    try:
        tracker = Tracker.attach(tracking_uri(home()), run_id, running=False)
        tags, metrics = tracker.all_tags(), tracker.metrics()
        doubts = run_doubts(run_id, tags, metrics, tracker.download)
    except InputError as error:
        print(f"its scores cannot be shown now: {error}")
        return
    for name in sorted(metrics):
        if name.startswith((f"{tags.get('protocol', '')}/", "test/")):
            print(f"  {name:<24} {printed(metrics[name])}")
    for doubt in doubts:
        print(doubt)


def rerun(options: Rerun) -> None:
    """Print the differences, train, and print the scores side by side."""
    from polypool.pipelines.training.record import inherited
    from polypool.pipelines.training.train import ORIGIN, read_original, scores, start

    run, tracker, lines = read_original(options.run_id, trust=options.trust)
    print(f"{run.label} {run.aggregator} seed {run.seed} (run {tracker.run_id})")
    print(*(f"  {line}" for line in lines), sep="\n")
    if options.dry_run:
        return
    run_id = start(run, more_tags={ORIGIN: tracker.run_id, **inherited(tracker.all_tags())})
    print(f"run {run_id} finished")
    for line in scores(tracker, Tracker.attach(tracking_uri(home()), run_id, running=False)):
        print(f"  {line}")
    print_next(("compare the runs", ("compare", "--experiment", run.experiment)))


@command
def main() -> None:
    """Train, and print the next steps."""
    file, words = take_run_id_file(sys.argv[1:])
    work = parse(words)  # report invalid arguments before importing torch, which takes seconds
    if file and isinstance(work, Ensemble | Rerun):
        members = f"; train its members: {', '.join(work.members)}" if isinstance(work, Ensemble) else ""
        raise InputError(f"{RUN_ID_FILE} is for one new run{members}")
    if isinstance(work, Rerun):
        rerun(work)
    elif isinstance(work, Ensemble):
        from polypool.pipelines.models.run_evaluation import start_ensemble  # imports torch

        show(start_ensemble(work))
        print_next(("compare the runs", ("compare", "--experiment", work.experiment)))
    else:
        run_id, how = train(work, file)
        show(run_id, how)
        from polypool.pipelines.models.next_steps import after_training

        print_next(*after_training(run_id))
