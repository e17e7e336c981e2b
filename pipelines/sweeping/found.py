"""What has become of each cell: found by the tags and the settings of recorded runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from infra.errors import AbsentError, InputError
from infra.registry import Spec
from infra.tracking import RunRecord, Tracker, find_runs
from pipelines.sweeping.grid import Cell
from pipelines.training.runs import tags
from tasks.run import Run, from_json

SWEEP = "sweep"
"""The tag that names the sweep which trained a run last."""
STOPPED = "stopped"
"""The tag of a run that was stopped early: after how many epochs."""
_KEYS = ("task", "dataset", "recipe", "aggregator", "text_aggregator", "model", "seed", "protocol")

State = Literal["finished", "stopped", "unfinished", "new"]


@dataclass(frozen=True, kw_only=True)
class Found:
    """A cell and the run that stands for it.

    Attributes:
        cell: the cell.
        state: `finished`; `stopped` early; `unfinished`, which goes on from its last checkpoint; or `new`, where there
            is no run of these settings, or only failed ones.
        run_id: the run, but for a new cell.
        stopped: after how many epochs, for one that was stopped.
        note: of a new cell, which run there is that does not stand for it, and why.
    """

    cell: Cell
    state: State = "new"
    run_id: str = ""
    stopped: str = ""
    note: str = ""


def records_of(uri: str, experiment: str) -> list[RunRecord]:
    """Return all runs of an experiment, latest first; none where the store or the experiment is still to be made.

    Raises:
        InputError: the store does not answer or cannot be used.
    """
    try:
        return find_runs(uri, experiment, finished=False)
    except AbsentError:
        return []


def find_cells(uri: str, cells: Sequence[Cell], records: Sequence[RunRecord]) -> list[Found]:
    """Look for the run of each cell.

    Args:
        uri: the store.
        cells: of the grid.
        records: of the experiment, latest first.
    """
    by_tags: dict[tuple[str, ...], list[RunRecord]] = defaultdict(list)
    for record in records:
        if record.tags.get("kind") == "train":
            by_tags[key(record.tags)].append(record)
    return [_find(uri, cell, by_tags[key(tags(cell.run))]) for cell in cells]


def key(of: Mapping[str, str]) -> tuple[str, ...]:
    """Return the tags that tell cells apart; specs in one spelling."""
    values = {name: of.get(name, "") for name in _KEYS}
    return tuple(_spelled(value) if "aggregator" in name else value for name, value in values.items())


def comparable(run: Run) -> Run:
    """Return a run without what does not change its result, so that runs can be compared."""
    text = _spelled(run.text_aggregator)
    aggregator = _spelled(run.aggregator)
    return replace(
        run,
        aggregator=aggregator,
        text_aggregator="" if text == aggregator else text,
        experiment=Run.experiment,
        published={},
        source="",
        cpus=1,
        retries=0,
        log_every=1,
        checkpoint_every=0,
        figures=True,
    )


def _spelled(spec: str) -> str:
    try:
        return str(Spec.parse(spec)) if spec else ""
    except InputError:
        return spec


def _find(uri: str, cell: Cell, candidates: Sequence[RunRecord]) -> Found:
    settings = {record.run_id: _settings(uri, record) for record in candidates}
    same = [record for record in candidates if settings[record.run_id] == comparable(cell.run)]
    for record in same:
        if record.status == "FINISHED":
            return Found(cell=cell, state="finished", run_id=record.run_id)
    for record in same:
        # what no sweep trains may still be at work
        if record.status != "FAILED" and record.tags.get(SWEEP):
            stopped = record.tags.get(STOPPED, "")
            state = "stopped" if stopped else "unfinished"
            return Found(cell=cell, state=state, run_id=record.run_id, stopped=stopped)
    notes = [f"run {record.run_id} failed" for record in same if record.status == "FAILED"]
    notes += [
        f"run {record.run_id} may be it, but its settings, the artifact run.json, are gone or of another version"
        for record in candidates
        if settings[record.run_id] is None and record.status == "FINISHED"
    ]
    return Found(cell=cell, note=notes[0] if notes else "")


def _settings(uri: str, record: RunRecord) -> Run | None:
    """Return the settings of a recorded run; None where they are lost, or those of another version."""
    try:
        return comparable(from_json(Tracker.attach(uri, record.run_id, running=False).read_json("run.json")))
    except (InputError, TypeError):
        return None
