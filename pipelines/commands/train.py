"""`polypool train RECIPE [--overrides]`: Train a run, on this machine or as a Ray job.

RECIPE is a name, or a file in YAML or JSON: what differs from the recipe that it names as `base`, or a whole run, such
as the `run.json` that every run keeps. `--list` shows all recipes and the published numbers they aim at, `RECIPE
--help` its settings. `resume RUN_ID` resumes an interrupted run from its last checkpoint; a finished one is left as it
is. `rerun RUN_ID` trains a run again with the settings that MLflow holds, and shows what differs from then. With
`RECIPE --run-id-file FILE` the id is written there, and the same command, given again, resumes that run.

A child of this process trains. Where it is killed, another one resumes the run, as long as there is a new checkpoint
between two faults (`--retries`).
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from polypool.infra.errors import InputError
from polypool.infra.paths import here, home
from polypool.infra.process.command import NamedRun, Repeated, command
from polypool.infra.process.output import print_next
from polypool.infra.process.watching import watched
from polypool.infra.tracking import Tracker, tracking_uri
from polypool.pipelines.models.ensemble_driver import EnsembleDriver
from polypool.pipelines.recipes.arguments import read_config, recipe_list
from polypool.pipelines.recipes.load import Ensemble
from polypool.pipelines.training.driver import RUN_ID_FILE, Driver, Resume, Trained
from polypool.tasks.run import Run


@dataclass(frozen=True, kw_only=True)
class Rerun:
    """Train a run again from what MLflow holds, and show what differs from then.

    Attributes:
        run_id: a run that was trained.
        dry_run: show what differs, and train nothing.
        trust: a module whose code the run may name, as module:Name; repeatable.
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
    """Return the file that `--run-id-file` names, if any, and the other words.

    Raises:
        SystemExit: with code 2, after a message: the flag has no value.
    """
    parser = argparse.ArgumentParser(prog="polypool train RECIPE", add_help=False, allow_abbrev=False)
    parser.add_argument(RUN_ID_FILE, type=Path, metavar="FILE")
    found, rest = parser.parse_known_args(words)
    return (here() / found.run_id_file if found.run_id_file else None), rest


def show(trained: Trained) -> None:
    """Print how a run ended, and its scores."""
    print(f"run {trained.run_id} {trained.how}")
    from polypool.pipelines.comparison.query_units import run_doubts
    from polypool.pipelines.training.run_results import printed

    try:
        tracker = Tracker.attach(tracking_uri(home()), trained.run_id, running=False)
        tags, metrics = tracker.all_tags(), tracker.metrics()
        doubts = run_doubts(trained.run_id, tags, metrics, tracker.download)
    except InputError as error:
        print(f"its scores cannot be shown now: {error}")
        return
    for name in sorted(metrics):
        if name.startswith((f"{tags.get('protocol', '')}/", "test/")):
            print(f"  {name:<24} {printed(metrics[name])}")
    for doubt in doubts:
        print(doubt)


def rerun(options: Rerun) -> None:
    """Print what differs, train, and print the scores side by side."""
    from polypool.pipelines.training.launch import ORIGIN, read_original, scores, start
    from polypool.pipelines.training.tuned import inherited

    original = read_original(options.run_id, trust=options.trust)
    run = original.run
    print(f"{run.label} {run.aggregator} seed {run.seed} (run {original.tracker.run_id})")
    print(*(f"  {line}" for line in original.lines()), sep="\n")
    if options.dry_run:
        return
    run_id = start(run, more_tags={ORIGIN: original.tracker.run_id, **inherited(original.tracker.all_tags())})
    print(f"run {run_id} finished")
    for line in scores(original.tracker, Tracker.attach(tracking_uri(home()), run_id, running=False)):
        print(f"  {line}")
    print_next(("compare the runs", ("compare", "--experiment", run.experiment)))


@command
def main() -> None:
    """Train, and print where to look."""
    file, words = take_run_id_file(sys.argv[1:])
    work = parse(words)  # a wrong word is an error before torch is imported, which takes seconds
    if file and isinstance(work, Ensemble | Rerun):
        members = f"; train its members: {', '.join(work.members)}" if isinstance(work, Ensemble) else ""
        raise InputError(f"{RUN_ID_FILE} is for one new run{members}")
    if isinstance(work, Rerun):
        rerun(work)
    elif isinstance(work, Ensemble):
        show(watched(EnsembleDriver(work=work), retries=Run.retries))  # in a child of this process
        print_next(("compare the runs", ("compare", "--experiment", work.experiment)))
    else:
        driver = Driver(work=work, file=file)
        show(trained := watched(driver, retries=driver.retries))
        from polypool.pipelines.models.next_steps import after_training

        print_next(*after_training(trained.run_id))
