"""Show the runs that MLflow has in TensorBoard or Weights & Biases, too.

python -m pipelines.mirror tensorboard --out tensorboard [RUN_ID ...] [--follow]
python -m pipelines.mirror wandb --project PROJECT [RUN_ID ...] [--follow]

Curves, figures, settings and results, of runs that have ended and of those that go on. Again, it adds what is new.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from infra.errors import InputError, command
from infra.paths import home
from infra.tracking import RunRecord, find_runs, tracking_uri

if TYPE_CHECKING:
    from pipelines.mirroring.base import Mirror


@dataclass(frozen=True, kw_only=True)
class Which:
    """Which runs, and for how long."""

    runs: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(help_behavior_hint="(default: all)")
    ] = ()
    """Ids of runs of the experiment."""
    experiment: str = "polypool"
    """MLflow experiment."""
    follow: bool = False
    """Go on with runs that go on, and those that begin, until Ctrl-C."""
    every: float = 10.0
    """Seconds between two looks of --follow."""


@dataclass(frozen=True, kw_only=True)
class TensorBoardOptions(Which):
    """Into a folder for `tensorboard --logdir`."""

    out: Path
    """The folder."""

    def mirror(self) -> Mirror:
        """Return what takes the runs."""
        from pipelines.mirroring.tensorboard import TensorBoard

        return TensorBoard(self.out)

    @property
    def hint(self) -> str:
        """Where to look."""
        return f"tensorboard --logdir {self.out}"


@dataclass(frozen=True, kw_only=True)
class WandBOptions(Which):
    """Into a project of Weights & Biases, by its client (`pip install 'polypool[wandb]'`) and its settings."""

    project: str
    """Name of the project."""
    entity: str = ""
    """Whose it is; yours where empty."""
    out: Path = Path("wandb")
    """Where the client keeps its files."""

    def mirror(self) -> Mirror:
        """Return what takes the runs.

        Raises:
            InputError: the client is not installed.
        """
        from pipelines.mirroring.wandb import WandB

        return WandB(self.project, entity=self.entity, folder=self.out)

    @property
    def hint(self) -> str:
        """Where to look."""
        return f"project {self.project}; with WANDB_MODE=offline, `wandb sync` sends what {self.out} holds"


def chosen(uri: str, which: Which) -> list[RunRecord]:
    """Return the runs, first ones first; those that have logged nothing are left out, and the plans of sweeps.

    Raises:
        InputError: the store does not answer, or has no such experiment or run in it.
    """
    records = {record.run_id: record for record in reversed(find_runs(uri, which.experiment, finished=False))}
    for run_id in which.runs:
        if run_id not in records:
            raise InputError(
                f"no run {run_id!r} in experiment {which.experiment!r}: `python -m pipelines.runs --experiment "
                f"{which.experiment}` lists those it has, and --experiment names another"
            )
    wanted = {run_id: records[run_id] for run_id in which.runs} if which.runs else records
    return [record for record in wanted.values() if record.metrics and record.tags.get("kind") != "sweep"]


def mirror(which: TensorBoardOptions | WandBOptions) -> tuple[int, int]:
    """Mirror runs; return how many had something new, and how many go on.

    Raises:
        InputError: as of `chosen` and `mirror` of the options, or no time between two looks.
    """
    from pipelines.mirroring.base import Following

    if not which.every > 0:
        raise InputError(f"--every must be above 0 seconds, got {which.every:g}")
    uri = tracking_uri(home())
    records = chosen(uri, which)
    following = Following(which.mirror(), uri)
    try:
        sent, going_on = following.round(records)
        while which.follow:
            time.sleep(which.every)
            records = chosen(uri, which)
            following.round(records)
    finally:
        following.close(records)
    return sent, going_on


@command
def main() -> None:
    """Mirror what the command line says."""
    kinds = (
        Annotated[TensorBoardOptions, tyro.conf.subcommand("tensorboard")]
        | Annotated[WandBOptions, tyro.conf.subcommand("wandb")]
    )
    which = tyro.cli(kinds, prog="python -m pipelines.mirror", description=__doc__)
    if which.follow:
        print(f"following experiment {which.experiment!r}; Ctrl-C ends this. {which.hint}", flush=True)
    sent, going_on = mirror(which)
    on = f"; {going_on} go on, and --follow goes with them" if going_on else ""
    print(f"{sent} runs have something new{on}\n{which.hint}")


if __name__ == "__main__":
    main()
