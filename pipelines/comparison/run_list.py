"""The list of an experiment's runs: their progress and the process that trains each; how dead ones are ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from polypool.infra.lease.on_disk import HeldError, Holder
from polypool.infra.text_tables import aligned, duration
from polypool.infra.tracking import RunRecord, Tracker, find_runs
from polypool.pipelines.training.recording import COLLAPSED

_WIDTH = 200


@dataclass(frozen=True, kw_only=True)
class ListedRun:
    """A run: `age` in seconds since it began, `collapsed` how it did if it did, `behind` as of `Behind`."""

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
            who or {"unknown": "unknown: its folder is not here"}.get(self.behind, self.behind),
        ]


def list_runs(uri: str, experiment: str, *, home: Path) -> list[ListedRun]:
    """Return the runs that were trained in an experiment, latest first, and what else has not ended, such as a sweep.

    Raises:
        InputError: the store does not answer, or there is no such experiment.
    """
    records = find_runs(uri, experiment, finished=False)
    return [
        _listed(record, home=home)
        for record in records
        if (kind := record.tags.get("kind")) == "train" or (kind and record.status == "RUNNING")
    ]


def _listed(record: RunRecord, *, home: Path) -> ListedRun:
    from polypool.pipelines.training.run_folder import behind

    who, holder = behind(record, home=home)
    tags, epochs = record.tags, record.params.get("optim.epochs", "")
    kind = tags.get("kind", "")
    return ListedRun(
        run_id=record.run_id,
        state=record.status,
        collapsed=tags.get(COLLAPSED, ""),
        recipe=f"{f'{kind} of ' * (kind != 'train')}{tags.get('recipe', '')}",
        aggregator=tags.get("aggregator", ""),
        text_aggregator=tags.get("text_aggregator", ""),
        seed=tags.get("seed", ""),
        epoch=int(record.metrics.get("epoch", 0)),
        epochs=int(epochs) if epochs.isascii() and epochs.isdigit() else None,
        age=time.time() - record.started,
        behind=who,
        holder=holder,
    )


def mark_dead(uri: str, runs: Sequence[ListedRun], *, home: Path) -> dict[str, str]:
    """End the runs that MLflow shows as running and no process trains; return the status of each, by id.

    What they logged and MLflow lacks is sent first. A run that ended while MLflow was away keeps that status.
    """
    from polypool.pipelines.training.recording import send
    from polypool.pipelines.training.run_folder import take_run

    ended: dict[str, str] = {}
    for run in runs:
        if run.behind != "nobody":
            continue
        try:
            tracker = Tracker.attach(uri, run.run_id, running=False)
            with take_run(tracker):
                send(tracker)
                if tracker.status() == "RUNNING":
                    tracker.finish("KILLED")
                ended[run.run_id] = tracker.status()
        except HeldError:  # another process has resumed it
            continue
    return ended


def run_table(runs: Sequence[ListedRun]) -> str:
    """Return the runs as a table, how some collapsed, and what to do about dead ones."""
    header = ("run", "state", "recipe", "aggregator", "seed", "epoch", "age", "trained by")
    lines = aligned(header, [run.cells() for run in runs], width=_WIDTH, left=(0, 1, 2, 3, 7))
    if collapsed := [run for run in runs if run.collapsed]:
        lines += ["", *(f"{run.run_id} collapsed: {run.collapsed}" for run in collapsed)]
    if dead := sum(run.behind == "nobody" for run in runs):
        lines += [
            "",
            f"{dead} of them shown as running {'is' if dead == 1 else 'are'} trained by nobody: --mark-dead ends "
            "dead runs, and `polypool train resume RUN`, or the command of a sweep given again, goes on with one",
        ]
    return "\n".join(lines)
