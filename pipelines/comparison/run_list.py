"""The list of an experiment's runs: what each is, its score, its progress and its process; how dead ones are ended."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from polypool.infra.locks import HeldError
from polypool.infra.text_tables import aligned, decimals, duration
from polypool.infra.tracking import RunRecord, Tracker, find_runs
from polypool.pipelines.training.record import COLLAPSED

_WIDTH = 1000  # no cell is wrapped
_SHORTEST = 8  # characters of an id


@dataclass(frozen=True, kw_only=True)
class ListedRun:
    """A run of a list.

    Attributes:
        score: of the test split under its protocol, by the task's deciding metric; None before it was scored.
        chance_normalised: the score between chance, 0, and the best possible, 100; None if unknown.
        collapsed: how it did, if it did.
        age: seconds since it began.
        behind: as of `Behind`.
        holder: the process that trains it; empty where there is none.
    """

    run_id: str
    name: str
    task: str
    dataset: str
    features: str
    protocol: str
    score: float | None
    chance_normalised: float | None
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
    holder: str

    @property
    def column(self) -> tuple[str, str, str]:
        """What runs have in common whose scores can be compared."""
        return self.task, self.dataset, self.protocol

    @property
    def place(self) -> tuple[int, float, float]:
        """A sort key: the best score of a column first, those without a score last, and the latest of them first."""
        if self.chance_normalised is not None:
            return 0, -self.chance_normalised, self.age
        return (2, self.age, 0.0) if self.score is None else (1, -self.score, self.age)

    def cells(self, length: int) -> list[str]:
        """Return its texts in the table, with an id of some characters."""
        text = f", text {self.text_aggregator}" if self.text_aggregator != self.aggregator else ""
        return [
            self.run_id[:length],
            self.task,
            self.dataset,
            self.features,
            f"{self.aggregator}{text}",
            self.seed,
            "" if self.score is None else f"{self.score:.{decimals(abs(self.score))}f}",
            self.protocol,
            self.recipe,
            f"{self.state}{', collapsed' * bool(self.collapsed)}",
            f"{self.epoch} of {'?' if self.epochs is None else self.epochs}",
            duration(self.age),
            self.holder.partition(":")[0]
            or {"unknown": "unknown: its folder is not here"}.get(self.behind, self.behind),
        ]


def list_runs(uri: str, experiment: str, *, home: Path) -> list[ListedRun]:
    """Return the runs that were trained in an experiment, and what else has not ended, such as a sweep.

    They are grouped by task, data set and protocol, and the best of a group comes first.

    Raises:
        InputError: the store does not answer, or there is no such experiment.
    """
    records = find_runs(uri, experiment, finished=False)
    listed = [
        _listed(record, home=home)
        for record in records
        if (kind := record.tags.get("kind")) == "train" or (kind and record.status == "RUNNING")
    ]
    return sorted(listed, key=lambda run: (run.column, run.place))


def _listed(record: RunRecord, *, home: Path) -> ListedRun:
    from polypool.pipelines.training.record import behind

    who, holder = behind(record, home=home)
    tags, epochs = record.tags, record.params.get("optim.epochs", "")
    kind = tags.get("kind", "")
    return ListedRun(
        run_id=record.run_id,
        name=record.name,
        task=tags.get("task", ""),
        dataset=tags.get("dataset", ""),
        features=tags.get("features", ""),
        protocol=tags.get("protocol", ""),
        score=_known(record, "test/score"),
        chance_normalised=_known(record, "test/chance_normalised"),
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


def _known(record: RunRecord, metric: str) -> float | None:
    value = record.metrics.get(metric, math.nan)
    return None if math.isnan(value) else value


def mark_dead(uri: str, runs: Sequence[ListedRun], *, home: Path) -> dict[str, str]:
    """End the runs that MLflow shows as running and no process trains; return the status of each, by id.

    What they logged and MLflow lacks is sent first. A run that ended while MLflow was away keeps that status.
    """
    from polypool.pipelines.training.record import send, take_run

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
    """Return the runs as a table, a part for each group, how some collapsed, and what to do about dead ones."""
    header = (
        *("run", "task", "data", "features", "aggregator", "seed", "score", "protocol", "recipe", "state"),
        *("epoch", "age", "trained by"),
    )
    length = _length([run.run_id for run in runs])
    cells = [run.cells(length) for run in runs]
    head, rule, *rows = aligned(header, cells, width=_WIDTH, left=(0, 1, 2, 3, 4, 7, 8, 9, 12))
    lines = [head, rule]
    for before, run, row in zip([None, *runs], runs, rows, strict=False):
        lines += [""] * (before is not None and before.column != run.column) + [row]
    if collapsed := [run for run in runs if run.collapsed]:
        lines += ["", *(f"{run.run_id} collapsed: {run.collapsed}" for run in collapsed)]
    if dead := sum(run.behind == "nobody" for run in runs):
        lines += [
            "",
            f"{dead} of them shown as running {'is' if dead == 1 else 'are'} trained by nobody: --mark-dead ends "
            "dead runs, and `polypool train resume RUN`, or the command of a sweep given again, goes on with one",
        ]
    return "\n".join(lines)


def _length(run_ids: Sequence[str]) -> int:
    """Return how many characters tell ids apart, at least `_SHORTEST`."""
    lengths = range(_SHORTEST, max(map(len, run_ids)) + 1)
    return next(length for length in lengths if len({of[:length] for of in run_ids}) == len({*run_ids}))
