"""`python -m pipelines.runs`: the runs of an experiment, how far each is, and who is at work on it.

A run that MLflow shows as running may have lost its process: `--mark-dead` ends those as KILLED, after what they logged
and MLflow has not got has been sent. A run whose folder is not on this machine is left as it is, unless its checkpoints
are in object storage, where all machines see who is at work.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro

from infra.errors import command
from infra.paths import home
from infra.process.lease import HeldError, Holder
from infra.tables import aligned, duration
from infra.tracking import RunRecord, Tracker, find_runs, tracking_uri
from pipelines.training.recording.described import COLLAPSED

_WIDTH = 200


@dataclass(frozen=True, kw_only=True)
class RunsOptions:
    """Which runs, and what to do with them."""

    experiment: str = "polypool"
    """MLflow experiment."""
    mark_dead: bool = False
    """End the runs that nobody trains any more, as KILLED."""
    json: bool = False
    """Print JSON, an object a run."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A run as it is listed: `age` in seconds since it began, `collapsed` where it has, `behind` as of `Behind`."""

    run_id: str
    state: str
    collapsed: str
    recipe: str
    aggregator: str
    text_aggregator: str
    seed: str
    epoch: int
    epochs: int | None
    age: float
    behind: str
    holder: Holder | None

    @classmethod
    def of(cls, record: RunRecord, *, home: Path, now: float) -> Row:
        """Return that of a record."""
        from pipelines.training.alive import behind

        who, holder = behind(record, home=home)
        tags, epochs = record.tags, record.params.get("optim.epochs", "")
        return cls(
            run_id=record.run_id,
            state=record.status,
            collapsed=tags.get(COLLAPSED, ""),
            recipe=tags.get("recipe", ""),
            aggregator=tags.get("aggregator", ""),
            text_aggregator=tags.get("text_aggregator", ""),
            seed=tags.get("seed", ""),
            epoch=int(record.metrics.get("epoch", 0)),
            epochs=int(epochs) if epochs.isascii() and epochs.isdigit() else None,
            age=now - record.started,
            behind=who,
            holder=holder,
        )

    def cells(self) -> list[str]:
        """Return its texts in the table."""
        text = f", text {self.text_aggregator}" if self.text_aggregator != self.aggregator else ""
        who = f"process {self.holder.process} on {self.holder.host}" if self.holder else ""
        return [
            self.run_id,
            f"{self.state}{', collapsed' * bool(self.collapsed)}",
            self.recipe,
            f"{self.aggregator}{text}",
            self.seed,
            f"{self.epoch} of {'?' if self.epochs is None else self.epochs}",
            duration(self.age),
            who or {"unknown": "unknown: it is not at hand here"}.get(self.behind, self.behind),
        ]


def rows(uri: str, experiment: str, *, home: Path) -> list[Row]:
    """Return the runs that were trained in an experiment, latest first.

    Raises:
        InputError: the store does not answer, or there is no such experiment.
    """
    records = find_runs(uri, experiment, finished=False)
    now = time.time()
    return [Row.of(record, home=home, now=now) for record in records if record.tags.get("kind") == "train"]


def mark_dead(uri: str, found: Sequence[Row], *, home: Path) -> dict[str, str]:
    """End the runs that are running by MLflow and that nobody trains; return how each has ended, by id.

    One that had ended while MLflow was away ends as it did.
    """
    from pipelines.training.folder import AT, checkpoints_at, take_run
    from pipelines.training.runs import send

    ended: dict[str, str] = {}
    for row in found:
        if row.behind != "nobody":
            continue
        try:
            tracker = Tracker.attach(uri, row.run_id, running=False)
            with take_run(home, row.run_id, checkpoints_at(row.run_id, tracker.tag(AT))):
                send(tracker)
                if tracker.status() == "RUNNING":
                    tracker.finish("KILLED")
                ended[row.run_id] = tracker.status()
        except HeldError:  # somebody went on with it meanwhile
            continue
    return ended


def table(found: Sequence[Row]) -> str:
    """Return the runs as a table, how some collapsed, and what can be done about those that nobody trains."""
    header = ("run", "state", "recipe", "aggregator", "seed", "epoch", "age", "at work")
    lines = aligned(header, [row.cells() for row in found], width=_WIDTH, left=(0, 1, 2, 3, 7))
    if collapsed := [row for row in found if row.collapsed]:
        lines += ["", *(f"{row.run_id} collapsed: {row.collapsed}" for row in collapsed)]
    if dead := sum(row.behind == "nobody" for row in found):
        lines += [
            "",
            f"{dead} of them shown as running {'is' if dead == 1 else 'are'} trained by nobody: --mark-dead ends what "
            "is dead, and `python -m pipelines.train resume RUN` goes on with one",
        ]
    return "\n".join(lines)


@command
def main() -> None:
    """List the runs, and mark the dead."""
    options = tyro.cli(RunsOptions, prog="python -m pipelines.runs", description=__doc__)
    uri = tracking_uri(home())
    found = rows(uri, options.experiment, home=home())
    if options.mark_dead:
        ended = mark_dead(uri, found, home=home())
        found = rows(uri, options.experiment, home=home()) if ended else found
        if not options.json:
            lines = [f"run {run_id}: nobody trains it, now {state}" for run_id, state in ended.items()]
            print("\n".join(lines or ["every run shown as running may be alive"]), end="\n\n")
    if options.json:
        plain: list[dict[str, Any]] = [asdict(row) for row in found]
        print(json.dumps(plain, indent=1))
    else:
        print(table(found) if found else f"experiment {options.experiment!r} has no trained runs")


if __name__ == "__main__":
    main()
