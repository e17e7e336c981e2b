"""The recorded run that stands for each trial: equal in tags and settings."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from polypool.infra.errors import AbsentError, InputError
from polypool.infra.files import read_json
from polypool.infra.registry import Spec
from polypool.infra.tracking import Artifacts, RunRecord, find_runs
from polypool.pipelines.training.folder import behind
from polypool.pipelines.training.recording.described import tags
from polypool.pipelines.training.sweep.trials import Trial
from polypool.tasks.run import WITHOUT_EFFECT, Run, from_json

SWEEP = "sweep"
"""The tag with the last sweep that trained a run."""
STOPPED = "stopped"
"""The tag of a run that was stopped early, with the epoch."""
_KEYS = ("task", "dataset", "recipe", "aggregator", "text_aggregator", "model", "seed", "protocol")

State = Literal["finished", "stopped", "unfinished", "running", "new"]


@dataclass(frozen=True, kw_only=True)
class Match:
    """A trial and the run that stands for it.

    Attributes:
        trial: the trial.
        state: `finished`; `stopped` early; `running` in another process, and left to it; `unfinished`, to resume; or
            `new`, where no run has these settings, or only failed ones.
        run_id: the run; empty for a new trial.
        stopped: after how many epochs, for one that was stopped.
        note: of a new trial, which run does not stand for it and why; of a running one, which process trains it.
    """

    trial: Trial
    state: State = "new"
    run_id: str = ""
    stopped: str = ""
    note: str = ""


def records_of(uri: str, experiment: str) -> list[RunRecord]:
    """Return all runs of an experiment, latest first; none where the store or the experiment does not exist yet.

    Raises:
        InputError: the store does not answer or cannot be used.
    """
    try:
        return find_runs(uri, experiment, finished=False)
    except AbsentError:
        return []


def match_trials(
    uri: str, trials: Sequence[Trial], records: Sequence[RunRecord], *, home: Path
) -> list[Match]:
    """Find the run of each trial.

    Args:
        uri: the tracking store.
        trials: of the sweep.
        records: of the experiment, latest first.
        home: of the project; folders of runs in it show which are at work.
    """
    by_tags: dict[tuple[str, ...], list[RunRecord]] = defaultdict(list)
    for record in records:
        if record.tags.get("kind") == "train":
            by_tags[key(record.tags)].append(record)
    artifacts = Artifacts(uri)
    return [_match(artifacts, trial, by_tags[key(tags(trial.run))], home=home) for trial in trials]


def key(of: Mapping[str, str]) -> tuple[str, ...]:
    """Return the tags that identify a trial, with specs in their canonical spelling."""
    values = {name: of.get(name, "") for name in _KEYS}
    return tuple(_spelled(value) if "aggregator" in name else value for name, value in values.items())


def comparable(run: Run) -> dict[str, Any]:
    """Return the settings of a run that change its result."""
    text, aggregator = _spelled(run.text_aggregator), _spelled(run.aggregator)
    settings = {name: value for name, value in vars(run).items() if name not in WITHOUT_EFFECT}
    return settings | {"aggregator": aggregator, "text_aggregator": "" if text == aggregator else text}


@functools.lru_cache(maxsize=1024)
def _spelled(spec: str) -> str:
    try:
        return str(Spec.parse(spec)) if spec else ""
    except InputError:
        return spec


def _match(artifacts: Artifacts, trial: Trial, candidates: Sequence[RunRecord], *, home: Path) -> Match:
    settings = {record.run_id: _settings(artifacts, record) for record in candidates}
    wanted = comparable(trial.run)
    same = [record for record in candidates if settings[record.run_id] == wanted]
    for record in same:
        if record.status == "FINISHED":
            return Match(trial=trial, state="finished", run_id=record.run_id)
    notes = []
    for record in same:
        who, holder = behind(record, home=home)
        if holder:
            note = f"process {holder.process} on {holder.host} is at work"
            return Match(trial=trial, state="running", run_id=record.run_id, note=note)
        if record.status != "FAILED" and (record.tags.get(SWEEP) or who == "nobody"):
            stopped = record.tags.get(STOPPED, "")
            state = "stopped" if stopped else "unfinished"
            return Match(trial=trial, state=state, run_id=record.run_id, stopped=stopped)
        if who == "unknown":
            notes.append(f"run {record.run_id} may be it, and at work elsewhere: its folder is not here")
    notes += [f"run {record.run_id} failed" for record in same if record.status == "FAILED"]
    notes += [
        f"run {record.run_id} may be it, but its settings cannot be used: {why}"
        for record in candidates
        if record.status == "FINISHED" and isinstance(why := settings[record.run_id], InputError)
    ]
    return Match(trial=trial, note=notes[0] if notes else "")


def _settings(artifacts: Artifacts, record: RunRecord) -> dict[str, Any] | InputError:
    """Return the settings of a recorded run, or why they cannot be used."""
    try:
        path = artifacts.path(record, "run.json")
        return comparable(from_json(read_json(path, what=f"the settings of run {record.run_id}")))
    except InputError as error:
        return error
