"""`polypool runs`: List the runs of an experiment, the best of each task first, and the processes that train them.

Verbs take a run by its id, the beginning that is shown or any other that no other run has, its name (`train --name`),
or `latest`. Scores of one data set and protocol can be compared; `compare` says which differences mean something.

A run that MLflow shows as running may have lost its process: `--mark-dead` ends those as KILLED, after sending what
they logged and MLflow lacks. A run whose folder is not on this machine stays as it is, unless its checkpoints are in
object storage, where all machines see which process holds it.

`polypool runs mirror tensorboard --out FOLDER [RUN_ID ...] [--follow]` and `polypool runs mirror wandb --project
PROJECT [RUN_ID ...] [--follow]` copy curves, figures, settings and results to other trackers; given again, they add
what is new.

`polypool runs archive --out FILE.parquet` writes what `compare` reads of finished runs to a file, from which `compare
--archives FILE.parquet` reads it on any machine.
"""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from polypool.infra.errors import InputError
from polypool.infra.paths import home
from polypool.infra.process.command import command
from polypool.infra.process.output import print_next
from polypool.infra.storage.places import local
from polypool.infra.tracking import tracking_uri
from polypool.pipelines.comparison.choice import ALL, Choice

if TYPE_CHECKING:
    from polypool.pipelines.comparison.mirrors import Mirror


def show(*, experiment: str = "polypool", mark_dead: bool = False, json: bool = False) -> None:
    """List the runs of an experiment.

    Args:
        experiment: MLflow experiment.
        mark_dead: end as KILLED the runs that no process trains any more.
        json: print JSON, an object for each run.
    """
    from polypool.pipelines.comparison import run_list

    uri = tracking_uri(home())
    runs = run_list.list_runs(uri, experiment, home=home())
    if mark_dead:
        ended = run_list.mark_dead(uri, runs, home=home())
        runs = run_list.list_runs(uri, experiment, home=home()) if ended else runs
        if not json:
            lines = [f"run {run_id}: no process trains it, now {state}" for run_id, state in ended.items()]
            print("\n".join(lines or ["no dead run was found"]), end="\n\n")
    if json:
        print(json_format.dumps([asdict(run) for run in runs], indent=1))
    else:
        print(run_list.run_table(runs) if runs else f"experiment {experiment!r} has no trained runs")


@dataclass(frozen=True, kw_only=True)
class Copying:
    """Which runs are copied, and for how long.

    Attributes:
        runs: ids of runs of the experiment.
        experiment: MLflow experiment.
        follow: go on with runs that are running, and with new ones, until Ctrl-C.
        every: seconds between two rounds of --follow.
    """

    runs: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(help_behavior_hint="(default: all)")
    ] = ()
    experiment: str = "polypool"
    follow: bool = False
    every: float = 10.0

    def __post_init__(self) -> None:
        if not self.every > 0:
            raise InputError(f"--every must be above 0 seconds, got {self.every:g}")

    def to(self, mirror: Mirror, hint: str) -> None:
        """Copy, and print what was copied and how to see it."""
        from polypool.pipelines.comparison import mirrors

        if self.follow:
            print(f"following experiment {self.experiment!r} until Ctrl-C. {hint}", flush=True)
        new, running = mirrors.mirror(
            mirror,
            uri=tracking_uri(home()),
            experiment=self.experiment,
            run_ids=self.runs,
            every=self.every if self.follow else 0.0,
        )
        more = f"; {running} still running, which --follow goes on with" if running else ""
        print(f"{new} runs have something new{more}\n{hint}")


def tensorboard(copying: tyro.conf.OmitArgPrefixes[Copying], *, out: Path) -> None:
    """Into a folder for `tensorboard --logdir`.

    Args:
        copying: which runs.
        out: the folder.
    """
    from polypool.pipelines.comparison.mirrors.tensorboard import TensorBoard

    copying.to(TensorBoard(out), f"tensorboard --logdir {out}")


def wandb(
    copying: tyro.conf.OmitArgPrefixes[Copying], *, project: str, entity: str = "", out: Path = Path("wandb")
) -> None:
    """Into a project of Weights & Biases, by its client (`pip install 'polypool[wandb]'`) and its settings.

    Args:
        copying: which runs.
        project: name of the project.
        entity: user or team of the project (default: the client's).
        out: folder for the client's files.
    """
    from polypool.pipelines.comparison.mirrors.wandb import WandB

    hint = f"project {project}; with WANDB_MODE=offline, `wandb sync` sends what {out} holds"
    copying.to(WandB(project, entity=entity, folder=out), hint)


def archive(
    *,
    out: Path,
    experiment: str = "polypool",
    choice: tyro.conf.OmitArgPrefixes[Choice] = ALL,
) -> None:
    """Write the scores, settings and results of single queries of finished runs to a file.

    Args:
        out: the file, .parquet.
        experiment: MLflow experiment.
        choice: which runs are written.
    """
    from polypool.infra.tracking import Artifacts
    from polypool.pipelines.comparison.archives import refuse_ending, write_archive
    from polypool.pipelines.comparison.selection import runs_of

    refuse_ending(local(out, what="the file of --out"))
    uri = tracking_uri(home())
    runs = choice.of(runs_of(uri, experiment))
    written = write_archive(runs, Artifacts(uri), out)
    rest = f"; {len(runs) - written} not finished and left out" if written < len(runs) else ""
    print(f"{written} runs written to {out}{rest}")
    print_next(("compare them, also elsewhere", ("compare", "--archives", str(out))))


@command
def main() -> None:
    if sys.argv[1:2] == ["archive"]:
        tyro.cli(archive, args=sys.argv[2:], prog="polypool runs archive")
    elif sys.argv[1:2] == ["mirror"]:
        mirrors: dict[str, Callable[..., None]] = {"tensorboard": tensorboard, "wandb": wandb}
        tyro.extras.subcommand_cli_from_dict(mirrors, args=sys.argv[2:], prog="polypool runs mirror")
    else:
        tyro.cli(show, prog="polypool runs", description=__doc__)
