"""`polypool runs`: List the runs of an experiment, their progress and the processes that train them.

A run that MLflow shows as running may have lost its process: `--mark-dead` ends those as KILLED, after sending what
they logged and MLflow lacks. A run whose folder is not on this machine stays as it is, unless its checkpoints are in
object storage, where all machines see which process holds it.

`polypool runs mirror tensorboard --out FOLDER [RUN_ID ...] [--follow]` and `polypool runs mirror wandb --project
PROJECT [RUN_ID ...] [--follow]` copy curves, figures, settings and results to other trackers; given again, they add
what is new.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from polypool.infra.errors import InputError
from polypool.infra.paths import home
from polypool.infra.process.command import command
from polypool.infra.tracking import tracking_uri

if TYPE_CHECKING:
    from polypool.pipelines.comparison.mirrors import Mirror


@dataclass(frozen=True, kw_only=True)
class RunsOptions:
    """Which runs, and what to do with them."""

    experiment: str = "polypool"
    """MLflow experiment."""
    mark_dead: bool = False
    """End as KILLED the runs that no process trains any more."""
    json: bool = False
    """Print JSON, an object for each run."""


@dataclass(frozen=True, kw_only=True)
class MirrorOptions:
    """Which runs, and for how long."""

    runs: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(help_behavior_hint="(default: all)")
    ] = ()
    """Ids of runs of the experiment."""
    experiment: str = "polypool"
    """MLflow experiment."""
    follow: bool = False
    """Go on with runs that are running, and with new ones, until Ctrl-C."""
    every: float = 10.0
    """Seconds between two rounds of --follow."""


@dataclass(frozen=True, kw_only=True)
class TensorBoardOptions(MirrorOptions):
    """Into a folder for `tensorboard --logdir`."""

    out: Path
    """The folder."""

    def mirror(self) -> Mirror:
        from polypool.pipelines.comparison.mirrors.tensorboard import TensorBoard

        return TensorBoard(self.out)

    @property
    def hint(self) -> str:
        return f"tensorboard --logdir {self.out}"


@dataclass(frozen=True, kw_only=True)
class WandBOptions(MirrorOptions):
    """Into a project of Weights & Biases, by its client (`pip install 'polypool[wandb]'`) and its settings."""

    project: str
    """Name of the project."""
    entity: str = ""
    """User or team of the project (default: the client's)."""
    out: Path = Path("wandb")
    """Folder for the client's files."""

    def mirror(self) -> Mirror:
        from polypool.pipelines.comparison.mirrors.wandb import WandB

        return WandB(self.project, entity=self.entity, folder=self.out)

    @property
    def hint(self) -> str:
        return f"project {self.project}; with WANDB_MODE=offline, `wandb sync` sends what {self.out} holds"


def mirror_runs(words: Sequence[str]) -> None:
    kinds = (
        Annotated[TensorBoardOptions, tyro.conf.subcommand("tensorboard")]
        | Annotated[WandBOptions, tyro.conf.subcommand("wandb")]
    )
    options = tyro.cli(kinds, args=words, prog="polypool runs mirror")
    from polypool.pipelines.comparison.mirrors import mirror

    if not options.every > 0:
        raise InputError(f"--every must be above 0 seconds, got {options.every:g}")
    if options.follow:
        print(f"following experiment {options.experiment!r} until Ctrl-C. {options.hint}", flush=True)
    new, running = mirror(
        options.mirror(),
        uri=tracking_uri(home()),
        experiment=options.experiment,
        run_ids=options.runs,
        every=options.every if options.follow else 0.0,
    )
    more = f"; {running} still running, which --follow goes on with" if running else ""
    print(f"{new} runs have something new{more}\n{options.hint}")


@command
def main() -> None:
    if sys.argv[1:2] == ["mirror"]:
        return mirror_runs(sys.argv[2:])
    options = tyro.cli(RunsOptions, prog="polypool runs", description=__doc__)
    from polypool.pipelines.comparison.run_list import list_runs, mark_dead, run_table

    uri = tracking_uri(home())
    runs = list_runs(uri, options.experiment, home=home())
    if options.mark_dead:
        ended = mark_dead(uri, runs, home=home())
        runs = list_runs(uri, options.experiment, home=home()) if ended else runs
        if not options.json:
            lines = [f"run {run_id}: no process trains it, now {state}" for run_id, state in ended.items()]
            print("\n".join(lines or ["no dead run was found"]), end="\n\n")
    if options.json:
        print(json.dumps([asdict(run) for run in runs], indent=1))
    else:
        print(run_table(runs) if runs else f"experiment {options.experiment!r} has no trained runs")
