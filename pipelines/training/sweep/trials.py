"""The trials of a sweep (recipes x aggregators x text aggregators x seeds), and the recorded runs that match them."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from polypool.infra.errors import AbsentError, InputError
from polypool.infra.files import read_json
from polypool.infra.limits import MOST_REPEATED
from polypool.infra.paths import here
from polypool.infra.registry import AGGREGATORS, Spec
from polypool.infra.spec import trust_specs
from polypool.infra.tracking import HOME, Artifacts, RunRecord, find_runs
from polypool.pipelines.recipes.arguments import read_run
from polypool.pipelines.training.record import AT, Tuned, behind, tags, text_of, tuned_of
from polypool.pipelines.training.train import prepare
from polypool.tasks.adapter import Metric
from polypool.tasks.run import WITHOUT_EFFECT, Run, from_json, portable


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run of a sweep.

    Attributes:
        run: to train.
        tunes: the aggregator whose settings are tuned, as of `Tuned.aggregator`; empty for none.
        chosen: the settings that are tried, or were chosen, with their values.
        tuned: how they were chosen.
    """

    run: Run
    tunes: str = ""
    chosen: tuple[tuple[str, str], ...] = ()
    tuned: Tuned | None = None

    @property
    def name(self) -> str:
        run = self.run
        text = f", text {run.text_aggregator}" if run.text_aggregator else ""
        chosen = f" ({text_of(self.chosen)})" if self.chosen else ""
        return f"{run.label} {run.aggregator}{text} seed {run.seed}{chosen}"

    @property
    def tags(self) -> dict[str, str]:
        """The tags of its run."""
        return tags(self.run) | (self.tuned.tag() if self.tuned else {})

    @property
    def rivals(self) -> tuple[str, str]:
        """What it has in common with the trials that it is compared with to stop the worse half early."""
        return self.run.recipe, self.tunes


@dataclass(frozen=True, kw_only=True)
class Trials:
    """All trials, recipe by recipe.

    Attributes:
        all: the runs to train.
        metrics: by recipe, the metric that chooses its best epoch.
        flags: settings of every recipe, as words of the command line.
    """

    all: tuple[Trial, ...]
    metrics: dict[str, Metric]
    flags: tuple[str, ...]


def make_trials(
    recipes: Sequence[str],
    aggregators: Sequence[str],
    *,
    text_aggregators: Sequence[str] = (),
    seeds: int = 1,
    experiment: str = "polypool",
    flags: Sequence[str] = (),
    early_stop: bool = False,
) -> Trials:
    """Return every combination once, after building each model without weights.

    Args:
        recipes: names of recipes of one run each.
        aggregators: specs, of the visual side alone where there are text aggregators.
        text_aggregators: specs of the text side; if none, the recipe's own, else the visual one.
        seeds: their number, from 0.
        experiment: of MLflow.
        flags: settings of every run, as of `polypool train`: `["--optim.epochs", "2"]`.
        early_stop: whether poor trials are to be stopped, which needs two epochs.

    Raises:
        InputError: unusable arguments, all in one message.
        SystemExit: with code 2, after a message: a flag is unknown or has an unusable value.
    """
    for flag in flags:
        name = flag.partition("=")[0].replace("_", "-")
        if name in OWN:
            raise InputError(f"{name}: a sweep decides that itself; use {OWN[name]}")
    wrong: list[str] = []
    for option, names in (("--recipes", recipes), ("--aggregators", aggregators)):
        if not names:
            wrong.append(f"{option} names nothing; give at least one")
    if not 1 <= seeds <= MOST_REPEATED:
        wrong.append(f"--seeds must be from 1 to {MOST_REPEATED:,}, not {seeds}")
    runs: list[Run] = []
    for name in dict.fromkeys(recipes):
        with _noting(wrong):
            runs.append(replace(read_run(name, flags), experiment=experiment))
    visual = _aggregators(aggregators, wrong)
    text = _aggregators(text_aggregators, wrong)
    metrics = {run.recipe: metric for run in runs if (metric := _checked(run, visual, text, wrong))}
    if early_stop and (short := sorted(run.recipe for run in runs if run.optim.epochs < 2)):
        wrong.append(f"--early-stop needs at least 2 epochs, and {', '.join(short)} has fewer")
    if wrong:
        raise InputError("\n  ".join(["this sweep cannot start:", *dict.fromkeys(wrong)]))
    trials = [
        Trial(run=replace(run, aggregator=v, text_aggregator="" if t == v else t, seed=seed))
        for run in runs
        for v, t, seed in itertools.product(visual, text or [run.text_aggregator], range(seeds))
    ]
    return Trials(all=tuple(trials), metrics=metrics, flags=tuple(flags))


OWN = {
    "--aggregator": "--aggregators",
    "--text-aggregator": "--text-aggregators",
    "--seed": "--seeds",
    "--recipe": "--recipes",
}
"""Flags of a run that a sweep sets itself, and its options for them."""


@contextmanager
def _noting(wrong: list[str], where: str = "") -> Iterator[None]:
    """Append the message of an InputError to a list instead of raising it."""
    try:
        yield
    except InputError as error:
        wrong.append(f"{where}{error}")


def _aggregators(specs: Sequence[str], wrong: list[str]) -> list[str]:
    """Return specs in their canonical spelling, each once."""
    canonical: dict[str, None] = {}
    for spec in specs:
        with _noting(wrong):
            parsed = Spec.parse(spec)
            trust_specs(spec)
            AGGREGATORS.get(parsed.name)
            canonical[AGGREGATORS.located(str(parsed), here)] = None
    return [*canonical]


def _checked(run: Run, visual: Sequence[str], text: Sequence[str], wrong: list[str]) -> Metric | None:
    """Build the model of every pair of aggregators; the corpus is read once."""
    adapter = None
    for v, t in itertools.product(visual, text or [run.text_aggregator]):
        pair = f"{v}, text {t}" if t else v
        with _noting(wrong, f"{run.recipe} with {pair}: "):
            trial = replace(run, aggregator=v, text_aggregator=t)
            adapter = prepare(trial, **({"assets": adapter.assets} if adapter else {}))
    return adapter.primary if adapter else None


SWEEP = "sweep"
"""The tag with the last sweep that trained a run, and the number of the trial in it."""
STOPPED = "stopped"
"""The tag of a run that was stopped early, with the epoch."""
_KEYS = ("task", "dataset", "recipe", "aggregator", "text_aggregator", "model", "seed", "protocol")

State = Literal["finished", "stopped", "unfinished", "running", "new"]


@dataclass(frozen=True, kw_only=True)
class Match:
    """A trial and its run.

    Attributes:
        trial: the trial.
        state: `finished`; `stopped` early; `running` in another process, and left to it; `unfinished`, to resume; or
            `new`, where no run has these settings, or only failed ones.
        run_id: the run; empty for a new trial.
        at: the object storage of the run's checkpoints, as its tag has it.
        stopped: after how many epochs, for one that was stopped.
        note: of a new trial, which run does not match it and why; of a running one, which process trains it.
    """

    trial: Trial
    state: State = "new"
    run_id: str = ""
    at: str = ""
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
            by_tags[_key(record.tags, run=record.run_id)].append(record)
    artifacts = Artifacts(uri)
    return [_match(artifacts, trial, by_tags[_key(trial.tags)], home=home) for trial in trials]


def _key(of: Mapping[str, str], *, run: str = "") -> tuple[str, ...]:
    """Return the tags that identify a trial, with specs in their canonical spelling; `run` is its id, for messages."""
    values = {name: of.get(name, "") for name in _KEYS}
    own = tuple(_spelled(value) if "aggregator" in name else value for name, value in values.items())
    tuned = tuned_of(of, run=run)
    return own + (tuned.identity if tuned else ())


def comparable(run: Run, home: str | Path) -> dict[str, Any]:
    """Return the settings of a run that change its result, with paths below its home relative to it."""
    run = portable(run, home)
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
    wanted = comparable(trial.run, home)
    same = [record for record in candidates if settings[record.run_id] == wanted]
    for record in same:
        if record.status == "FINISHED":
            return Match(trial=trial, state="finished", run_id=record.run_id)
    notes = []
    for record in same:
        who, holder = behind(record, home=home)
        if holder:
            note = f"{holder.partition(':')[0]} is at work"
            return Match(trial=trial, state="running", run_id=record.run_id, note=note)
        if record.status != "FAILED" and (record.tags.get(SWEEP) or who == "nobody"):
            stopped = record.tags.get(STOPPED, "")
            state = "stopped" if stopped else "unfinished"
            at = record.tags.get(AT, "")
            return Match(trial=trial, state=state, run_id=record.run_id, at=at, stopped=stopped)
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
        run = from_json(read_json(path, what=f"the settings of run {record.run_id}"))
        return comparable(run, record.tags.get(HOME, ""))
    except InputError as error:
        return error
