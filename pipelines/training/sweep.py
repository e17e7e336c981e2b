"""Sweeps: trials (recipes x aggregators x seeds), their recorded runs, tuning with equal budgets, and the training.

A sweep is a run in MLflow, and the runs that it starts are its children; a run that existed before keeps its parent, if
any. Trials train side by side, in one Ray session.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import inspect
import itertools
import json
import math
import os
import random
import re
import secrets
import shlex
import shutil
import statistics
import time
import traceback
import typing
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from polypool.aggregators.aggregator import Aggregator
from polypool.infra.compute.unfilled import Unfilled
from polypool.infra.errors import AbsentError, InputError, unknown
from polypool.infra.fields import above, hints, require
from polypool.infra.files import make_folder, read_json
from polypool.infra.limits import MOST_REPEATED
from polypool.infra.locks import HeldError, Lock
from polypool.infra.paths import here, home
from polypool.infra.process import stopping
from polypool.infra.process.output import JSON, TEXT, log_line, mode
from polypool.infra.process.stopping import Stopped, graceful_stop, resume_hint
from polypool.infra.ray import (
    Ended,
    Halving,
    Resources,
    cores,
    local_cores,
    on_cluster,
    ray_session,
    run_side_by_side,
)
from polypool.infra.registry import AGGREGATORS, RECIPES, Spec
from polypool.infra.spec import (
    changed,
    split_values,
    trust_flags,
    trust_modules,
    trust_specs,
    trusted,
    without,
    written,
)
from polypool.infra.text_tables import ABSENT, Table, as_markdown, as_text, duration
from polypool.infra.tracking import (
    COMMAND,
    HOME,
    NOTE,
    NOTE_LENGTH,
    PARENT,
    Artifacts,
    RunRecord,
    Tracker,
    command_line,
    find_runs,
    tracking_uri,
)
from polypool.pipelines.recipes.arguments import read_run
from polypool.pipelines.training.loop.optim import longest_prefix
from polypool.pipelines.training.record import (
    AT,
    FACTOR,
    Listed,
    Tuned,
    at_work,
    behind,
    listed,
    send,
    tags,
    take_run,
    text_of,
    tuned_of,
)
from polypool.pipelines.training.train import (
    CHECKPOINT_SECONDS,
    TrialOptions,
    checkpoints_at,
    new_runs_at,
    prepare,
    resume,
    start,
    trains_here,
)
from polypool.tasks.adapter import Metric, TaskAdapter
from polypool.tasks.run import WITHOUT_EFFECT, Optim, Run, from_json, modules, portable, to_json

KIND = "sweep"
"""The tag `kind` of a sweep's run."""
PLAN = "sweep_plan"
"""Its tag with the hash of the plan, which is equal for the same trials in any order."""
TRIALS, TUNING = "trials.json", "tuning.json"
"""Its artifacts: a row for each trial; the budget, the space and what was chosen for each aggregator."""
SWEEP = "sweep"
"""The tag with the last sweep that trained a run, and the number of the trial in it."""
STOPPED = "stopped"
"""The tag of a run that was stopped early, with the epoch."""
ERROR = "error.txt"
"""The artifact of a failed run with the whole error."""
SEED = 1000
"""Of the trials that choose settings; the runs with what was chosen have the seeds 0, 1, ..."""
OWN = {
    "--aggregator": "--aggregators",
    "--text-aggregator": "--text-aggregators",
    "--seed": "--seeds",
    "--recipe": "--recipes",
}
"""Flags of a run that a sweep sets itself, and its options for them."""
_KEYS = ("task", "dataset", "recipe", "aggregator", "text_aggregator", "model", "seed", "protocol")
_JOB = ("ray", "job", "submit", "--working-dir", ".", "--", "python", "-m", "polypool")
_ENDING = 60.0  # seconds for the process of a trial that was told to end
_OPTIM = "optim."

# --- trials


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
        experiment: of the runs, in MLflow.
        early_stop: whether poor trials are stopped early, and those that were are left as they are.
    """

    all: tuple[Trial, ...]
    metrics: Mapping[str, Metric]
    flags: tuple[str, ...] = ()
    experiment: str = Run.experiment
    early_stop: bool = False


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
        if (name := flag.partition("=")[0].replace("_", "-")) in OWN:
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
    visual, text = (_canonical(specs, wrong) for specs in (aggregators, text_aggregators))
    metrics = {}
    for run in runs:
        adapter = None  # the corpus is read once
        for v, t in itertools.product(visual, text or [run.text_aggregator]):
            with _noting(wrong, f"{run.recipe} with {v}{f', text {t}' if t else ''}: "):
                known = {"assets": adapter.assets} if adapter else {}
                adapter = prepare(replace(run, aggregator=v, text_aggregator=t), **known)
        if adapter:
            metrics[run.recipe] = adapter.primary
    if early_stop and (short := sorted(run.recipe for run in runs if run.optim.epochs < 2)):
        wrong.append(f"--early-stop needs at least 2 epochs, and {', '.join(short)} has fewer")
    _refuse(wrong)
    trials = [
        Trial(run=replace(run, aggregator=v, text_aggregator="" if t == v else t, seed=seed))
        for run in runs
        for v, t, seed in itertools.product(visual, text or [run.text_aggregator], range(seeds))
    ]
    return Trials(
        all=tuple(trials), metrics=metrics, flags=tuple(flags), experiment=experiment, early_stop=early_stop
    )


@contextmanager
def _noting(wrong: list[str], where: str = "") -> Iterator[None]:
    """Append the message of an InputError to a list instead of raising it."""
    try:
        yield
    except InputError as error:
        wrong.append(f"{where}{error}")


def _refuse(wrong: Sequence[str]) -> None:
    if wrong:
        raise InputError("\n  ".join(["this sweep cannot start:", *dict.fromkeys(wrong)]))


def _canonical(specs: Sequence[str], wrong: list[str]) -> list[str]:
    """Return specs of aggregators in their canonical spelling, each once."""
    canonical: dict[str, None] = {}
    for spec in specs:
        with _noting(wrong):
            parsed = Spec.parse(spec)
            trust_specs(spec)
            AGGREGATORS.get(parsed.name)
            canonical[AGGREGATORS.located(str(parsed), here)] = None
    return [*canonical]


# --- the recorded run of each trial

State = Literal["finished", "stopped", "unfinished", "running", "new", "trained", "failed"]


@dataclass(frozen=True, kw_only=True)
class Match:
    """A trial and its run.

    Attributes:
        trial: the trial.
        state: before the sweep: `finished`; `stopped` early; `running` in another process, and left to it;
            `unfinished`, to resume; or `new`, where no run has these settings, or only failed ones. After its training:
            `trained`, `stopped` or `failed`.
        run_id: the run; empty for a new trial.
        at: the object storage of the run's checkpoints, as its tag has it.
        detail: after how many epochs it was stopped, or the last line of the error.
        note: of a new trial, which run does not match it and why; of a running one, which process trains it.
    """

    trial: Trial
    state: State = "new"
    run_id: str = ""
    at: str = ""
    detail: str = ""
    note: str = ""


def records_of(experiment: str) -> list[RunRecord]:
    """Return all runs of an experiment, latest first; none where the store or the experiment does not exist yet.

    Raises:
        InputError: the store does not answer or cannot be used.
    """
    try:
        return find_runs(tracking_uri(home()), experiment, finished=False)
    except AbsentError:
        return []


def match_trials(trials: Sequence[Trial], records: Sequence[RunRecord]) -> tuple[Match, ...]:
    """Find the run of each trial among those of the experiment, latest first."""
    by_tags: dict[tuple[str, ...], list[RunRecord]] = defaultdict(list)
    for record in records:
        if record.tags.get("kind") == "train":
            by_tags[_key(record.tags, run=record.run_id)].append(record)
    artifacts = Artifacts(tracking_uri(home()))
    return tuple(_match(artifacts, trial, by_tags[_key(trial.tags)]) for trial in trials)


def _key(of: Mapping[str, str], *, run: str = "") -> tuple[str, ...]:
    """Return the tags that identify a trial, with specs in their canonical spelling; `run` is its id, for messages."""
    values = {name: of.get(name, "") for name in _KEYS}
    own = tuple(_spelled(value) if "aggregator" in name else value for name, value in values.items())
    tuned = tuned_of(of, run=run)
    return own + (tuned.identity if tuned else ())


def comparable(run: Run, where: str | Path) -> dict[str, Any]:
    """Return the settings of a run that change its result, with paths below its home relative to it."""
    run = portable(run, where)
    text, aggregator = _spelled(run.text_aggregator), _spelled(run.aggregator)
    settings = {name: value for name, value in vars(run).items() if name not in WITHOUT_EFFECT}
    return settings | {"aggregator": aggregator, "text_aggregator": "" if text == aggregator else text}


@functools.lru_cache(maxsize=1024)
def _spelled(spec: str) -> str:
    try:
        return str(Spec.parse(spec)) if spec else ""
    except InputError:
        return spec


def _match(artifacts: Artifacts, trial: Trial, candidates: Sequence[RunRecord]) -> Match:
    wanted, same, notes = comparable(trial.run, home()), list[RunRecord](), list[str]()
    for record in candidates:
        try:
            path = artifacts.path(record, "run.json")
            run = from_json(read_json(path, what=f"the settings of run {record.run_id}"))
        except InputError as error:
            if record.status == "FINISHED":
                notes.append(f"run {record.run_id} may be it, but its settings cannot be used: {error}")
            continue
        if comparable(run, record.tags.get(HOME, "")) == wanted:
            same.append(record)
    for record in same:
        if record.status == "FINISHED":
            return Match(trial=trial, state="finished", run_id=record.run_id)
    for record in same:
        who, holder = behind(record, home=home())
        if holder:
            note = f"{holder.partition(':')[0]} is at work"
            return Match(trial=trial, state="running", run_id=record.run_id, note=note)
        if record.status == "FAILED":
            notes.append(f"run {record.run_id} failed")
        elif record.tags.get(SWEEP) or who == "nobody":
            epochs, at = record.tags.get(STOPPED, ""), record.tags.get(AT, "")
            state = "stopped" if epochs else "unfinished"
            return Match(trial=trial, state=state, run_id=record.run_id, at=at, detail=epochs)
        elif who == "unknown":
            notes.append(f"run {record.run_id} may be it, and at work elsewhere: its folder is not here")
    return Match(trial=trial, note="; ".join(notes[:1]))


# --- a plan: which trials are done, how long the others take, and the same as Ray jobs


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Trials with the run of each."""

    trials: Trials
    matches: tuple[Match, ...]

    @property
    def to_do(self) -> list[Match]:
        """The trials to train."""
        done = ("finished", "running", *(("stopped",) if self.trials.early_stop else ()))
        return [match for match in self.matches if match.state not in done]

    def print_notes(self) -> None:
        """Print a line for each trial that has a note."""
        for match in self.matches:
            if match.note:
                how = "left alone" if match.state == "running" else "trained anew"
                print(f"{match.trial.name} is {how}: {match.note}")

    def summary(self) -> str:
        """Return one line with the numbers of trials by state."""
        counts: Counter[str] = Counter(match.state for match in self.matches)
        then = "left as they are" if self.trials.early_stop else "to go on, since --early-stop is not given"
        skipped = f", {counts['finished']} of them finished before and skipped" if counts["finished"] else ""
        others = {
            "running": "at work now, left to whoever trains them",
            "unfinished": "interrupted before, to go on from the last checkpoint",
            "stopped": f"stopped early before, {then}",
        }
        parts = [f"{counts[state]} {text}" for state, text in others.items() if counts[state]]
        trials = f"{len(self.matches)} trial{'s' * (len(self.matches) > 1)}{skipped}"
        return "; ".join([trials, *parts, f"{len(self.to_do)} to train"])

    def timed(self, records: Sequence[RunRecord]) -> Sequence[RunRecord]:
        """Return the runs that times are estimated from: those of the experiment, and of the usual one."""
        own = self.trials.experiment == Run.experiment
        return [*records, *(() if own else records_of(Run.experiment))]

    def at_once(self, concurrent: int) -> int:
        """Return how many trials train at once: as many as this machine has cores for where `concurrent` is 0."""
        most = max(match.trial.run.cpus * match.trial.run.workers for match in self.matches)
        return concurrent or max(1, local_cores() // most)

    def text(self, records: Sequence[RunRecord], *, concurrent: int = 0, words: Sequence[str] = ()) -> str:
        """Return what `--dry-run` prints.

        Args:
            records: runs of the experiment.
            concurrent: trials at once; 0 for as many as this machine has cores for.
            words: of the command line, without `--dry-run`.
        """
        records, concurrent, to_do = self.timed(records), self.at_once(concurrent), self.to_do
        width = max(len(match.trial.name) for match in self.matches)
        times = {match.trial.name: seconds(match.trial.run, records) for match in to_do}
        lines = [self.summary(), ""]
        for match in self.matches:
            name = match.trial.name
            about = f"about {duration(times[name])}" if times.get(name) is not None else "time unknown"
            state = f"{match.state} ({match.detail})" if match.detail else match.state
            parts = [state, match.run_id and f"run {match.run_id}", about if name in times else ""]
            note = f"; {match.note}" if match.note else ""
            lines.append(f"  {name:<{width}}  {', '.join(part for part in parts if part)}{note}")
        if to_do:
            whole = duration(total([*times.values()], concurrent))
            lines += ["", f"estimated time, {concurrent} at once: {whole}"]
            lines += ["", "as one Ray job:", f"  {shlex.join([*_JOB, 'sweep', *words])}"]
            if alone := [match for match in to_do if not match.trial.tunes]:
                lines += ["", "or a job for each trial:", *(f"  {self.job(match)}" for match in alone)]
        return "\n".join(lines)

    def job(self, match: Match) -> str:
        """Return the command line that trains one trial as a Ray job."""
        run = match.trial.run
        if match.run_id:
            return shlex.join([*_JOB, "train", "resume", match.run_id, *trust_flags(modules(run))])
        words = ["--aggregator", run.aggregator]
        if run.text_aggregator != RECIPES.get(run.recipe)().text_aggregator:
            words += ["--text-aggregator", run.text_aggregator]
        words += ["--seed", str(run.seed), "--experiment", run.experiment]
        return shlex.join([*_JOB, "train", run.recipe, *self.trials.flags, *words])


def seconds(run: Run, records: Sequence[RunRecord]) -> float | None:
    """Estimate a run's time, scaled to its epochs; None where no run of its recipe on its data has finished.

    The median over those finished runs that have its aggregator, or else over all of them. The time beside training is
    bounded, since a resumed run also lay idle.
    """
    wanted = {"kind": "train", "recipe": run.recipe, "dataset": run.data.dataset}.items()
    same = [record for record in records if record.status == "FINISHED" and wanted <= record.tags.items()]
    times = []
    for record in [of for of in same if of.tags.get("aggregator") == run.aggregator] or same:
        whole = (record.ended or record.started) - record.started
        training = min(record.metrics.get("time/train_seconds", whole), whole)
        trained = int(record.params.get("optim.epochs", 0)) or max(1, run.optim.epochs)
        times.append(training * run.optim.epochs / trained + min(whole - training, max(60.0, training)))
    return statistics.median(times) if times else None


def total(times: Sequence[float | None], concurrent: int) -> float | None:
    """Return the time of all, `concurrent` at once; None where one is unknown."""
    known = [time for time in times if time is not None]
    if len(known) < len(times):
        return None
    return max(max(known, default=0.0), sum(known) / concurrent)


# --- the space of a tuned sweep: lists of values for settings, and which points of it an aggregator tries

Values = Mapping[str, tuple[Any, ...]]
Point = tuple[tuple[str, Any], ...]
"""A value for each setting, such as `(("optim.lr", 0.001), ("kmax.k", 2))`."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """Values by setting, in the order of names.

    Attributes:
        shared: of settings that all aggregators have: `optim.NAME`, and `aggregator.lr` for those with weights.
        own: of options of single aggregators, `NAME.OPTION`.
        sides: the settings of a run that are specs of the aggregators that are swept.
    """

    shared: Values
    own: Values
    sides: tuple[str, ...] = ("aggregator",)

    def own_of(self, run: Run) -> Values:
        """Return the values of options of a run's aggregators."""
        names = {Spec.parse(spec).name for spec in self.specs(run).values()}
        return {name: values for name, values in self.own.items() if _owner(name) in names}

    def specs(self, run: Run) -> dict[str, str]:
        """Return the specs of a run's aggregators that are swept, by side."""
        return {side: spec for side in self.sides if (spec := getattr(run, side))}

    def unchosen(self, run: Run) -> str:
        """Return the specs of a run's aggregators without the options that are to be chosen."""
        return ", text ".join(_unchosen(spec, self.own) for spec in self.specs(run).values())

    def options(self, run: Run, *, weights: bool) -> Values:
        """Return the values of all settings that change something for the aggregators of a run.

        Args:
            run: with its recipe's settings.
            weights: whether its aggregators have weights, so that `aggregator.lr` changes something.
        """
        every = {**self.shared, **self.own_of(run)}
        return {name: values for name, values in every.items() if weights or name != FACTOR}

    def points(self, run: Run, *, weights: bool, budget: int, seed: int) -> list[Point]:
        """Return the points that the aggregators of a run try: all of their space, or a sample of `budget` of it.

        The first one is nearest to the run's own settings. A sample is a Latin hypercube (McKay, Beckman and Conover,
        Technometrics 21, 1979): of each setting every value comes equally often, or once more than another one, and no
        point comes twice. Runs of equal spaces and nearest points have the same sample.

        Args:
            run: with its recipe's settings.
            weights: as of `options`.
            budget: the most points.
            seed: draws the sample.
        """
        settings: dict[str, Any] = {FACTOR: 1.0} | {
            f"{_OPTIM}{name}": x for name, x in vars(run.optim).items()
        }
        for spec in map(Spec.parse, self.specs(run).values()):
            for parameter in inspect.signature(AGGREGATORS.get(spec.name)).parameters.values():
                value = spec.params.get(parameter.name, parameter.default)
                if value is not parameter.empty:
                    settings.setdefault(f"{spec.name}.{parameter.name}", value)
        options = self.options(run, weights=weights)
        first = tuple((name, _nearest(values, settings.get(name))) for name, values in options.items())
        size = math.prod(map(len, options.values()))
        return _latin_hypercube(options, first, budget=min(budget, size), size=size, seed=seed)

    def at(self, run: Run, point: Point, *, prefixes: Sequence[str]) -> Run:
        """Return a run with the settings of a point.

        Args:
            run: with its recipe's settings.
            point: of this space.
            prefixes: names of the modules that are the run's aggregators.
        """
        values = dict(point)
        optim = {name.removeprefix(_OPTIM): x for name, x in values.items() if name.startswith(_OPTIM)}
        optim["lr_factors"] = scaled(run.optim.lr_factors, prefixes, values.get(FACTOR, 1.0))
        specs = self.specs(run)
        for side, spec in specs.items():
            name = Spec.parse(spec).name
            own = {key.rpartition(".")[2]: value for key, value in values.items() if _owner(key) == name}
            specs[side] = changed(spec, **own) if own else spec
        return replace(run, optim=replace(run.optim, **optim), **specs)


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _unchosen(spec: str, own: Values) -> str:
    """Return a spec without the options that are to be chosen."""
    name = Spec.parse(spec).name
    return without(spec, *(option.rpartition(".")[2] for option in own if _owner(option) == name))


def read_space(
    settings: Sequence[str],
    *,
    aggregators: Sequence[str],
    text_aggregators: Sequence[str] = (),
    read: Callable[[Sequence[str]], Run],
) -> Space:
    """Return the space of `SETTING=VALUE,VALUE` texts.

    Args:
        settings: the texts.
        aggregators: specs of the sweep.
        text_aggregators: specs of the text's, if they are swept.
        read: returns the run of some flags of `polypool train`, which reads the values of `optim.NAME`.

    Raises:
        InputError: an unknown setting, one given twice, no values, or two aggregators become one.
        SystemExit: with code 2, after a message: an unusable value of `optim.NAME`.
    """
    values: dict[str, tuple[Any, ...]] = {}
    names = dict.fromkeys(Spec.parse(spec).name for spec in (*aggregators, *text_aggregators))
    options = [
        f"{name}.{parameter.name}"
        for name in names
        for parameter in inspect.signature(AGGREGATORS.get(name)).parameters.values()
        if parameter.kind == parameter.KEYWORD_ONLY
    ]
    for text in settings:
        name, _, after = (part.strip() for part in text.partition("="))
        name = name.replace("-", "_") if name.startswith(_OPTIM) else name
        words = [word.strip() for word in split_values(after, f"--choose {text}")]
        if not words or not all(words):
            raise InputError(f"--choose {text!r}: expected SETTING=VALUE,VALUE, such as optim.lr=1e-3,2e-3")
        if name in values:
            raise InputError(f"--choose gives {name} twice; list all of its values once")
        values[name] = tuple(dict.fromkeys(_value(name, word, options, read) for word in words))
    own = {name: values[name] for name in sorted(values) if name != FACTOR and not name.startswith(_OPTIM)}
    shared = {name: values[name] for name in sorted(values) if name not in own}
    for specs in (aggregators, text_aggregators):
        by_rest: dict[str, str] = {}
        for spec in dict.fromkeys(specs):
            if (rest := _unchosen(spec, own)) in by_rest:
                raise InputError(
                    f"{by_rest[rest]} and {spec} differ only in options that --choose chooses; name {rest} once"
                )
            by_rest[rest] = spec
    sides = ("aggregator", "text_aggregator") if text_aggregators else ("aggregator",)
    return Space(shared=shared, own=own, sides=sides)


def _value(name: str, word: str, options: Sequence[str], read: Callable[[Sequence[str]], Run]) -> Any:
    """Return a listed value of a setting as a run holds it."""
    if name == FACTOR:
        try:
            factor = float(word)
            require(above(0), **{FACTOR: factor})
        except ValueError as error:
            raise InputError(f"--choose {name}: {error}") from None
        return factor
    if name in options:
        owner, _, option = name.rpartition(".")
        return Spec.parse(f"{owner}({option}={word})").params[option]
    known = {}  # settings that are a number or a text, rather than a list or a switch
    for setting, hint in hints(Optim).items():
        kind = hint.__origin__ if typing.get_origin(hint) is typing.Annotated else hint
        if kind in (int, float, str) or typing.get_origin(kind) is Literal:
            known[f"{_OPTIM}{setting}"] = setting
    if name not in known:
        why = " It takes a list of values of settings that hold one each, or an option of one aggregator of the sweep."
        raise unknown("setting of --choose:", name, [*known, FACTOR, *options], why)
    return getattr(read([f"--{name.replace('_', '-')}", word]).optim, known[name])


def _latin_hypercube(values: Values, first: Point, *, budget: int, size: int, seed: int) -> list[Point]:
    """Return distinct points, beginning with `first`, in which each value of a setting comes equally often.

    Args:
        values: by setting.
        first: a point of these.
        budget: the number of points, at most `size`.
        size: the number of all points. Of more than half of these, what is left out is drawn.
        seed: draws them.
    """
    rng = random.Random(seed)
    if 2 * budget > size + 1:
        left_out = _latin_hypercube(values, first, budget=size - budget + 1, size=size, seed=seed)
        every = (tuple(zip(values, point, strict=True)) for point in itertools.product(*values.values()))
        rest = [point for point in every if point not in left_out]
        rng.shuffle(rest)
        return [first, *rest]
    while True:
        columns = []
        for name, nearest in first:
            others = [value for value in values[name] if value != nearest]
            rng.shuffle(others)  # where the budget is no multiple, the last ones come once less
            rest = [*itertools.islice(itertools.cycle([nearest, *others]), budget)][1:]
            rng.shuffle(rest)
            columns.append([nearest, *rest])
        # swaps within a setting, which keep its numbers, until no point comes twice
        for _ in range(100 * budget):
            points = [tuple(zip(values, point, strict=True)) for point in zip(*columns, strict=True)]
            twice = [at for at, point in enumerate(points) if point in points[:at]]
            if not twice:
                return points
            column, one, other = rng.choice(columns), rng.choice(twice), rng.randrange(1, budget)
            column[one], column[other] = column[other], column[one]


def _nearest(values: Sequence[Any], to: Any) -> Any:
    """Return the value nearest to a number, in ratio where all are above 0; of others the same one or the first."""
    if to in values:
        return values[values.index(to)]
    if not all(isinstance(value, int | float) for value in (*values, to)):
        return values[0]
    if all(value > 0 for value in (*values, to)):
        return min(values, key=lambda value: abs(math.log(value / to)))
    return min(values, key=lambda value: abs(value - to))


def scaled(
    factors: Sequence[tuple[str, float]], prefixes: Sequence[str], by: float
) -> tuple[tuple[str, float], ...]:
    """Return factors on learning rates where those of all weights under some prefixes are multiplied."""
    if by == 1:
        return tuple(factors)
    inside = {prefix: longest_prefix(factors, prefix, default=1.0) for prefix in prefixes}
    inside |= {name: factor for name, factor in factors if name.startswith(tuple(prefixes))}
    return tuple((dict(factors) | {name: factor * by for name, factor in inside.items()}).items())


def _plain(point: Point) -> tuple[tuple[str, str], ...]:
    return tuple((name, written(value)) for name, value in point)


def _plain_values(values: Values) -> Listed:
    return tuple((name, tuple(map(written, of))) for name, of in values.items())


# --- tuning with equal budgets: the trials of every aggregator, scored on `val` alone, and what they choose


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The trials of a tuned sweep.

    Attributes:
        trials: of all recipes and aggregators, each with `Trial.tunes`, the one nearest to the recipe first.
        space: of their settings.
        budget: trials of each aggregator, at most.
        sample: seed of the sample of each aggregator's space.
        sizes: numbers of points of the spaces, by recipe and aggregator.
        seeds: of the runs with what is chosen, their number from 0.
    """

    trials: Trials
    space: Space
    budget: int
    sample: int
    sizes: Mapping[tuple[str, str], int]
    seeds: int

    @property
    def notes(self) -> list[str]:
        """The trials of each aggregator beside the size of its space, a line for all that have the same."""
        alike: dict[tuple[str, int], list[str]] = defaultdict(list)
        for (recipe, aggregator), size in self.sizes.items():
            alike[recipe, size].append(aggregator)
        return [
            f"{recipe}: {min(size, self.budget)} of {size:,} points each: {', '.join(names)}"
            for (recipe, size), names in alike.items()
        ]

    @property
    def words(self) -> str:
        """The budget and the space, as tables show them."""
        words = self.tuned(self.trials.all[0], sweep="").words
        return f"{words}; and {listed(_plain_values(self.space.own))}" if self.space.own else words

    def tuned(self, trial: Trial, *, sweep: str) -> Tuned:
        """Return the record of the runs that have the settings of a trial; `sweep` is the id of the sweep's run."""
        return Tuned(
            aggregator=trial.tunes,
            budget=self.budget,
            space=_plain_values(self.space.shared),
            own=_plain_values(self.space.own_of(trial.run)),
            early_stop=self.trials.early_stop,
            chosen=trial.chosen,
            sweep=sweep,
            seed=self.sample,
        )

    def final(self, chosen: Sequence[Trial], *, sweep: str = "") -> Trials:
        """Return the runs of every seed with chosen settings, which score the test split.

        Args:
            chosen: one trial for each recipe and aggregator.
            sweep: the id of the sweep's run.
        """
        trials = [
            replace(trial, run=replace(trial.run, seed=seed, test=True), tuned=self.tuned(trial, sweep=sweep))
            for trial in chosen
            for seed in range(self.seeds)
        ]
        return replace(self.trials, all=tuple(trials), early_stop=False)


def make_tuning(
    trials: Trials,
    settings: Sequence[str],
    *,
    text_aggregators: bool,
    budget: int,
    sample: int,
) -> Tuning:
    """Return the trials of a tuned sweep, after building a model for each value that may change it.

    Args:
        trials: of the same sweep without tuning.
        settings: `SETTING=VALUE,VALUE` texts, which span the space.
        text_aggregators: whether the text's aggregators are swept, too.
        budget: trials of each aggregator and recipe.
        sample: seed of the sample of each aggregator's space.

    Raises:
        InputError: unusable arguments.
        SystemExit: with code 2, after a message: an unusable value of a setting.
    """
    if budget < 1:
        raise InputError(f"--choose needs --budget, the trials of each aggregator: at least 1, not {budget}")
    runs = [trial.run for trial in trials.all if trial.run.seed == 0]
    space = read_space(
        settings,
        aggregators=[run.aggregator for run in runs],
        text_aggregators=[run.text_aggregator or run.aggregator for run in runs if text_aggregators],
        read=lambda flags: read_run(runs[0].recipe, [*trials.flags, *flags]),
    )
    wrong, sizes, tried = list[str](), dict[tuple[str, str], int](), list[Trial]()
    assets: dict[str, Any] = {}  # by recipe, whose data are read once
    checked: set[tuple[object, ...]] = set()

    def adapter_of(run: Run) -> TaskAdapter:
        adapter = prepare(run, **({"assets": assets[run.recipe]} if run.recipe in assets else {}))
        assets[run.recipe] = adapter.assets
        return adapter

    for run in runs:
        prefixes, tunes = aggregator_prefixes(adapter_of(run)), space.unchosen(run)
        options = space.options(run, weights=bool(prefixes))
        points = space.points(run, weights=bool(prefixes), budget=budget, seed=sample)
        sizes[run.recipe, tunes] = math.prod(map(len, options.values()))
        alone = [((name, x),) for name, of in space.options(run, weights=True).items() for x in of]
        made = {point: space.at(run, point, prefixes=prefixes) for point in (*alone, *points)}
        for point, at in made.items():
            parts = {(at.recipe, at.aggregator, at.text_aggregator), (at.recipe, at.optim)}
            with _noting(wrong, f"{run.recipe} {tunes} with {text_of(_plain(point))}: "):
                if not parts <= checked:  # what runs have in common is checked once
                    adapter_of(at)
                checked |= parts
        tried += [
            Trial(run=replace(made[point], seed=SEED, test=False), tunes=tunes, chosen=_plain(point))
            for point in points
        ]
    _refuse(wrong)
    return Tuning(
        trials=replace(trials, all=tuple(tried)),
        space=space,
        budget=budget,
        sample=sample,
        sizes=sizes,
        seeds=len({trial.run.seed for trial in trials.all}),
    )


def aggregator_prefixes(adapter: TaskAdapter) -> tuple[str, ...]:
    """Return the names of the aggregators in a task's model that have weights, without those inside others."""
    with Unfilled():
        model = adapter.model(pretrained=False)
    weights, found = [name for name, _ in model.named_parameters()], list[str]()
    for name, module in model.named_modules():
        if isinstance(module, Aggregator) and not name.startswith(tuple(f"{outer}." for outer in found)):
            found.append(name)
    return tuple(name for name in found if any(weight.startswith(f"{name}.") for weight in weights))


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What the trials of an aggregator in a recipe chose.

    Attributes:
        recipe: the recipe.
        aggregator: without the options that were chosen.
        metric: by which, on `val`.
        space: points of the aggregator's space.
        trials: begun with, of these.
        whole: of them, trained to the end.
        default: the score of the first trial, nearest to the recipe's settings; None where it has none.
        best: the best score; None where no trial was trained to the end.
        chosen: the settings that reached it, as text; empty for none.
        run_id: the trial that did.
    """

    recipe: str
    aggregator: str
    metric: str
    space: int
    trials: int
    whole: int
    default: float | None
    best: float | None
    chosen: str
    run_id: str


def choose(
    plan: Plan, rows: Sequence[Row], *, sizes: Mapping[tuple[str, str], int]
) -> list[tuple[Choice, Trial | None]]:
    """Return what the trials of every aggregator chose, with the best trial of each; the first one of equal ones.

    Args:
        plan: of the trials.
        rows: how each of them ended.
        sizes: as of `Tuning`.
    """
    groups: dict[tuple[str, str], list[tuple[Trial, Row]]] = defaultdict(list)
    for match, row in zip(plan.matches, rows, strict=True):
        groups[match.trial.rivals].append((match.trial, row))
    choices = []
    for (recipe, aggregator), group in groups.items():
        metric = plan.trials.metrics[recipe]
        whole = [(row.best, trial, row) for trial, row in group if row.whole and row.best is not None]
        best, trial, row = max(whole, key=lambda each: metric.sign * each[0], default=(None, None, None))
        choice = Choice(
            recipe=recipe,
            aggregator=aggregator,
            metric=metric.name,
            space=sizes[recipe, aggregator],
            trials=len(group),
            whole=len(whole),
            default=group[0][1].best,
            best=best,
            chosen=text_of(trial.chosen) if trial else "",
            run_id=row.run_id if row else "",
        )
        choices.append((choice, trial))
    return choices


def choice_table(choices: Sequence[Choice], *, words: str) -> Table:
    """Return what was chosen for every aggregator; `words` are the budget and the space."""
    failed = [f"{each.recipe} {each.aggregator}" for each in choices if each.best is None]
    rows = [
        (
            f"{each.recipe} {each.aggregator}",
            each.chosen or ABSENT,
            each.metric,
            *(ABSENT if score is None else f"{score:.4g}" for score in (each.default, each.best)),
            str(each.trials) if each.whole == each.trials else f"{each.whole} of {each.trials}",
            f"{each.space:,}",
        )
        for each in choices
    ]
    return Table(
        title="chosen on val",
        legend=(
            words,
            "default: the first trial, nearest to the recipe's own settings; space: points that trials are drawn from",
        ),
        header=("recipe and aggregator", "chosen", "metric", "default", "chosen's", "trials", "space"),
        rows=tuple(rows),
        notes=tuple(f"{name} is not run, as none of its trials was trained to the end" for name in failed),
    )


# --- the training


@contextmanager
def only_sweep(experiment: str) -> Iterator[None]:
    """Hold the lock on the sweeps of an experiment.

    Raises:
        InputError: another sweep of it is at work.
    """
    path = home() / "runs" / f"sweep-{re.sub(r'[^A-Za-z0-9_.-]', '_', experiment)}.lock"
    with Lock(path, of=f"experiment {experiment!r}: another sweep of it is at work"):
        yield


def _resources(matches: Sequence[Match], *, concurrent: int = 0) -> tuple[int, dict[str, float]]:
    """Return what the largest of some trials needs.

    Args:
        matches: the trials.
        concurrent: the most trials at once, which share the GPUs where there are fewer of these; 0 for as many as fit.

    Returns:
        The number of trials at once, at least 1 and no more than the session has cores and shares of GPUs for, and
        what one of them reserves where it trains in its own process.
    """
    most, reserved = concurrent or math.inf, {"CPU": 0.0}
    for run in (match.trial.run for match in matches):
        each = Resources.plan(run.workers, fewest=run.worker_counts[0], cpus=run.cpus)
        most = min(most, cores() // (each.cpus * run.workers))
        reserved["CPU"] = max(reserved["CPU"], each.cpus)
        if each.gpu:
            sharing = math.ceil(max(concurrent, 1) / cores("GPU"))
            most = min(most, sharing * cores("GPU") // run.workers)
            reserved["GPU"] = math.floor(1e4 / sharing) / 1e4  # the finest part that Ray counts
    return max(1, int(most)), reserved


def carry_out(plan: Plan, *, concurrent: int = 0, parent: str = "") -> list[Match]:
    """Train what is to be done, and return how each of these trials ended.

    One at a time, trials of one worker train in this process, without Ray; those that were interrupted come last, since
    a trial that the system kills for its memory ends this process.

    Args:
        plan: the trials.
        concurrent: the most trials at once; 0 for as many as fit.
        parent: the run of the sweep, to which new runs belong; empty for none.
    """
    ends: list[Match] = []
    if not (matches := plan.to_do):
        return ends
    groups: dict[tuple[tuple[str, ...], bool], list[Match]] = defaultdict(list)
    for match in matches:  # scores of different recipes cannot be compared to stop the worse ones
        at = checkpoints_at(match.run_id, match.at) if match.run_id else new_runs_at()
        alone = trains_here(match.trial.run, at=at, in_sweep=True)
        groups[match.trial.rivals if plan.trials.early_stop else (), alone].append(match)
    alone = all(alone for _, alone in groups)
    here = concurrent == 1 and alone and not plan.trials.early_stop and not on_cluster()
    with nullcontext() if here else ray_session(dashboard=not alone):
        at_once = 1 if here else _resources(matches, concurrent=concurrent)[0]
        print(f"{plan.summary()}, {at_once} at once", flush=True)
        for (_, alone), group in groups.items():
            side_by_side = None
            if here:
                group = sorted(group, key=lambda match: match.state == "unfinished")
            else:
                reserved = _resources(group, concurrent=at_once)[1] if alone else {}
                retries = max(match.trial.run.retries for match in group) if alone else 0
                side_by_side = functools.partial(
                    run_side_by_side, concurrent=at_once, resources=reserved, retries=retries
                )
            ends += _train(plan, group, side_by_side, parent=parent, before=len(ends))
    return ends


def _train(
    plan: Plan,
    matches: Sequence[Match],
    side_by_side: Callable[..., None] | None,
    *,
    parent: str,
    before: int,
) -> list[Match]:
    """Train some trials of a plan, after `before` others; with early stopping, rivals alone.

    Without `side_by_side` they train one after another in this process.
    """
    sweep, halving = f"sweep-{secrets.token_hex(4)}", None
    if plan.trials.early_stop:
        run = matches[0].trial.run
        primary = plan.trials.metrics[run.recipe]
        halving = Halving(
            metric=f"dev/{primary.name}", higher_is_better=primary.higher_is_better, epochs=run.optim.epochs
        )
    started, ends = time.monotonic(), dict[int, Ended]()
    stop = make_folder(home() / "runs" / sweep) / "stop"

    def ended(end: Ended) -> None:
        ends[end.number] = end
        if stop.exists():
            return
        done, whole = before + len(ends), len(plan.to_do)
        how = "done" if "run_id" in end.result else "stopped early"
        what = f"{matches[end.number].trial.name}: {f'failed: {last_line(end.error)}' if end.error else how}"
        past = time.monotonic() - started
        left = past / len(ends) * (whole - done)
        if mode() == JSON:
            about = {"what": what, "done": done, "total": whole, "unit": "trial", "seconds_left": round(left)}
            log_line(event="progress", **about)
        elif mode() == TEXT:
            soon = f", {duration(left)} left" if done < whole else ""
            print(f"[{done}/{whole}, {duration(past)}{soon}] {what}", flush=True)

    train = functools.partial(
        train_trial,
        matches=tuple(matches),
        options=TrialOptions(stop=stop, metric=halving.metric if halving else ""),
        environment={
            "POLYPOOL_HOME": str(home()),
            "MLFLOW_TRACKING_URI": tracking_uri(home()),
        }
        if side_by_side
        else {},
        trust=trusted(),
        sweep=sweep,
        tags={COMMAND: command_line(), **({PARENT: parent} if parent else {})},
    )
    settled: list[Match] = []
    try:
        with resume_hint(stopping.command_line()), graceful_stop(stop.touch, seconds=CHECKPOINT_SECONDS):
            if side_by_side:
                side_by_side(train, len(matches), folder=stop.parent, halving=halving, ended=ended)
            else:
                for number in range(len(matches)):
                    with own_settings():
                        result = train(number)
                    ended(Ended(number=number, result=result, error=result.get("error", "")))
    finally:
        shutil.rmtree(stop.parent, ignore_errors=True)
        settled = _settle(plan, matches, ends, sweep)
    return settled


def train_trial(
    number: int,
    *,
    matches: Sequence[Match],
    options: TrialOptions,
    environment: Mapping[str, str],
    trust: Sequence[str],
    sweep: str,
    tags: Mapping[str, str],
) -> dict[str, Any]:
    """Train a trial in this process; return the id of its run, its error, or that it was stopped.

    Args:
        number: of the trial.
        matches: all trials, and the runs to resume.
        options: of each trial.
        environment: variables that a process of Ray's lacks.
        trust: modules whose code specs may name.
        sweep: its name.
        tags: of new runs.
    """
    os.environ |= environment
    trust_modules(*trust)
    if options.stop.exists():
        return {"stopped": True}
    match = matches[number]
    begun, own = options.stop.with_name(f"{number}.run"), {SWEEP: f"{sweep}/{number}"}
    try:
        # the file was left by a process that died
        if run_id := begun.read_text() if begun.exists() else match.run_id:
            return {"run_id": resume(run_id, more_tags=own | {STOPPED: ""}, trial=options)}
        new = {**own, **tags, **match.trial.tags}
        return {"run_id": start(match.trial.run, more_tags=new, trial=options, begun=begun.write_text)}
    except Stopped:
        return {"stopped": True}
    except InputError as error:
        return {"error": str(error)}
    except Exception as error:  # the other trials go on
        return {"error": "".join(traceback.format_exception(error))}
    finally:
        gc.collect()  # the model may be in a cycle, and another trial comes


@contextmanager
def own_settings() -> Iterator[None]:
    """Restore what a trial may set of torch in this process: threads, default dtype, deterministic algorithms."""
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    flags = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        torch.use_deterministic_algorithms(flags[0], warn_only=flags[1])


def last_line(error: str) -> str:
    """Return the last line of a traceback."""
    return error.strip().splitlines()[-1]


def _settle(plan: Plan, matches: Sequence[Match], ends: Mapping[int, Ended], sweep: str) -> list[Match]:
    """Return how each trial ended, and set the status of runs whose process was killed."""
    own = {record.tags.get(SWEEP): record for record in records_of(plan.trials.experiment)}
    patience = _ENDING if len(ends) == len(matches) else 0.0  # none after Ctrl-C
    settled: list[Match] = []
    for number, match in enumerate(matches):
        end, record = ends.get(number), own.get(f"{sweep}/{number}")
        done = replace(match, state="trained", detail="", run_id=record.run_id if record else "")
        tracker = Tracker.attach(tracking_uri(home()), record.run_id, running=False) if record else None
        if tracker:
            with suppress(HeldError), take_run(tracker, seconds=patience):  # a process that was told to end
                send(tracker)
        if end is None:
            if tracker and record and record.status == "RUNNING":  # the sweep was interrupted
                tracker.finish("KILLED")
        elif end.error:
            settled.append(replace(done, state="failed", detail=last_line(end.error)))
            if tracker:
                tracker.text(ERROR, end.error)
                tracker.finish("FAILED")
        elif "stopped" in end.result:
            continue  # its run has that status
        elif "run_id" in end.result or (record and record.status == "FINISHED"):
            settled.append(done)  # a short run may end before it can be stopped
        else:
            epochs = f"after epoch {int(end.result.get('epoch', 0))} of {match.trial.run.optim.epochs}"
            settled.append(replace(done, state="stopped", detail=epochs))
            if tracker:
                tracker.tags({STOPPED: epochs})
                tracker.finish("KILLED")
    return settled


# --- a whole sweep, and its run


@dataclass(frozen=True, kw_only=True)
class Row:
    """A trial at the end of a sweep.

    Attributes:
        name: of the trial.
        how: it ended, such as `trained` or `failed`.
        run_id: its run; empty where there is none.
        metric: chooses its best epoch.
        best: value of that metric on `val`; None where no epoch was scored.
        parent: the run that its run belongs to; empty for none.
    """

    name: str
    how: str
    run_id: str
    metric: str
    best: float | None
    parent: str

    @property
    def whole(self) -> bool:
        """Whether it was trained to the end, now or before."""
        return self.how in ("trained", "finished before")


def sweep(
    trials: Trials, tuning: Tuning | None = None, *, concurrent: int = 0, params: Mapping[str, Any]
) -> tuple[Plan, Plan, list[Match], Table | None]:
    """Train what is missing, recorded as a run of its own: a grid, or trials that choose and then the chosen runs.

    Args:
        trials: the grid.
        tuning: its trials that choose, if any.
        concurrent: trials at once; 0 for as many as fit.
        params: options of the sweep, for its run.

    Returns:
        All trials and runs; of a tuned sweep the chosen runs alone; how those that were trained ended; and what was
        chosen, if anything.

    Raises:
        InputError: another sweep of the experiment is at work, or the store does not answer.
    """
    with only_sweep(trials.experiment):
        records = records_of(trials.experiment)
        plan = plan_of(tuning.trials if tuning else trials, records)
        if tuning:
            print("".join(f"{line}\n" for line in tuning.notes), end="")
        plan.print_notes()
        to_do = bool(plan.to_do or (tuning and _final(tuning, plan, [])[0].to_do))
        parent = open_parent(plan, records, params=params, to_do=to_do)
        run_id, final, shown = parent.run_id if parent else "", plan, None
        with at_work(parent) if parent else nullcontext():
            ends = carry_out(plan, concurrent=concurrent, parent=run_id)
            if tuning:
                final, choices = _final(tuning, plan, ends, sweep=run_id)
                shown = choice_table(choices, words=tuning.words)
                print(f"\n{as_text(shown)}\n", flush=True)
                final.print_notes()
                ends += carry_out(final, concurrent=concurrent, parent=run_id)
                plan = replace(plan, matches=(*plan.matches, *final.matches))
                if parent:
                    space = {"shared": tuning.space.shared, "own": tuning.space.own}
                    about = {"budget": tuning.budget, "sample": tuning.sample, **space}
                    parent.json(TUNING, {**about, "chosen": [asdict(choice) for choice in choices]})
        if parent:
            conclude(parent, plan, ends, first=as_markdown(shown) if shown else "")
    return plan, final, ends, shown


def plan_of(trials: Trials, records: Sequence[RunRecord]) -> Plan:
    """Match trials with the runs of their experiment."""
    return Plan(trials=trials, matches=match_trials(trials.all, records))


def _final(
    tuning: Tuning, first: Plan, ends: Sequence[Match], *, sweep: str = ""
) -> tuple[Plan, list[Choice]]:
    """Return the runs with what the trials chose, and the choices."""
    chosen = choose(first, rows_of(first, ends), sizes=tuning.sizes)
    trials = tuning.final([trial for _, trial in chosen if trial], sweep=sweep)
    return plan_of(trials, records_of(trials.experiment)), [choice for choice, _ in chosen]


def preview(tuning: Tuning, *, concurrent: int = 0, words: Sequence[str] = ()) -> str:
    """Return what `--dry-run` prints: the trials, and the runs with what they choose or have chosen.

    Args:
        tuning: the trials.
        concurrent: trials at once; 0 for as many as this machine has cores for.
        words: of the command line, without `--dry-run`.
    """
    records = records_of(tuning.trials.experiment)
    first = plan_of(tuning.trials, records)
    lines = [tuning.words, *tuning.notes, "", "trials that choose, scored on val alone:"]
    lines += [first.text(records, concurrent=concurrent, words=words), ""]
    if first.to_do:
        runs = {match.trial.rivals: match.trial.run for match in first.matches}
        times = [seconds(run, first.timed(records)) for run in runs.values()] * tuning.seeds
        concurrent = first.at_once(concurrent)
        whole = duration(total(times, concurrent))
        lines.append(
            f"then {len(times)} runs with what they choose; estimated time, {concurrent} at once: {whole}"
        )
        return "\n".join(lines)
    final, choices = _final(tuning, first, [])
    lines += [as_text(choice_table(choices, words=tuning.words)), ""]
    if final.matches:
        lines += ["runs with what they chose:", final.text(records, concurrent=concurrent, words=words)]
    return "\n".join(lines)


def outcome_text(plan: Plan, ends: Sequence[Match]) -> str:
    """Return the report of a sweep: numbers of trials by outcome, and those that were stopped or failed."""
    ways = {"trained": "trained", "stopped": "stopped early", "failed": "failed"}
    by_way = {way: [end for end in ends if end.state == way] for way in ways}
    lines = [", ".join(f"{len(by_way[way])} {ways[way]}" for way in ways if by_way[way] or way == "trained")]
    if not plan.to_do:
        lines = [plan.summary()]
    before = [match for match in plan.matches if match.state == "stopped" and match not in plan.to_do]
    if stopped := [*by_way["stopped"], *before]:
        lines += ["", "stopped early, and so in no comparison:"]
        lines += [f"  {match.trial.name}: {match.detail}, run {match.run_id}" for match in stopped]
    if by_way["failed"]:
        lines += ["", "failed:"]
        for end in by_way["failed"]:
            run = f" (run {end.run_id})" if end.run_id else ""
            lines.append(f"  {end.trial.name}{run}: {end.detail}")
    return "\n".join(lines)


def open_parent(
    plan: Plan, records: Sequence[RunRecord], *, params: Mapping[str, Any], to_do: bool
) -> Tracker | None:
    """Return the run of a plan: that of an earlier start, or a new one.

    Args:
        plan: of the sweep.
        records: of the experiment, latest first.
        params: options of the sweep.
        to_do: whether anything is to be trained.

    Returns:
        None where nothing is to be trained, and no earlier start of this plan is unfinished.

    Raises:
        InputError: the store does not answer.
    """
    runs = [match.trial.run for match in plan.matches]
    trials = sorted(
        json.dumps({name: x for name, x in to_json(run).items() if name not in WITHOUT_EFFECT})
        for run in runs
    )
    tuned = [str(params[name]) for name in ("budget", "sample", "seeds") if params.get("choose")]
    named = hashlib.sha256(json.dumps([trials, plan.trials.early_stop, *tuned]).encode()).hexdigest()
    same = [of for of in records if of.tags.get("kind") == KIND and of.tags.get(PLAN) == named]
    if same and (to_do or same[0].status != "FINISHED"):
        return Tracker.attach(tracking_uri(home()), same[0].run_id)
    if not to_do:
        return None
    shared = {
        "task": [run.task_name for run in runs],
        "dataset": [run.data.dataset for run in runs],
        "recipe": [run.recipe for run in runs],
    }
    own = {name: ", ".join(dict.fromkeys(of)) for name, of in shared.items()}
    return Tracker.start(
        plan.trials.experiment,
        uri=tracking_uri(home()),
        home=home(),
        name=f"{'tuned ' * bool(params.get('choose'))}sweep of {own['recipe']}, {len(runs)} trials",
        tags=own | {"kind": KIND, PLAN: named, NOTE: plan.summary()},
        params={**params, "trials": len(runs)},
    )


def conclude(tracker: Tracker, plan: Plan, ends: Sequence[Match], *, first: str = "") -> None:
    """Record how every trial ended and which is best; the sweep fails where a trial did.

    Args:
        tracker: of the sweep's run.
        plan: all trials.
        ends: of those that were trained.
        first: Markdown that its description begins with.

    Raises:
        InputError: the store does not answer.
    """
    rows = rows_of(plan, ends)
    tracker.table(TRIALS, {name: [vars(row)[name] for row in rows] for name in vars(rows[0])})
    best = best_of(plan, rows)
    scores = {f"best/{recipe}/{row.metric}": row.best for recipe, row in best.items() if row.best is not None}
    tracker.log(scores, step=0)
    named = {f"best.{recipe}": row.run_id for recipe, row in best.items()}
    tracker.tags(named | {NOTE: description(rows, best, own=tracker.run_id, first=first)})
    if any(end.state == "failed" for end in ends):
        tracker.finish("FAILED")


def rows_of(plan: Plan, ends: Sequence[Match]) -> list[Row]:
    """Return how each trial of a plan ended."""
    records = {record.run_id: record for record in records_of(plan.trials.experiment)}
    how = {match.trial: (f"{match.state} before", match.run_id) for match in plan.matches}
    for end in ends:
        how[end.trial] = f"stopped {end.detail}" if end.state == "stopped" else end.state, end.run_id
    rows = []
    for trial, (ended, run_id) in how.items():
        metric, record = plan.trials.metrics[trial.run.recipe].name, records.get(run_id)
        best = record.metrics.get(f"dev/best_{metric}") if record else None
        parent = record.tags.get(PARENT, "") if record else ""
        rows.append(Row(name=trial.name, how=ended, run_id=run_id, metric=metric, best=best, parent=parent))
    return rows


def best_of(plan: Plan, rows: Sequence[Row]) -> dict[str, Row]:
    """Return the best trial of each recipe among those that were trained to the end and score the test split."""
    best: dict[str, Row] = {}
    for match, row in zip(plan.matches, rows, strict=True):
        recipe, counts = match.trial.run.recipe, row.whole and match.trial.run.test
        than = best[recipe].best if recipe in best else None
        if counts and row.best is not None and plan.trials.metrics[recipe].better(row.best, than):
            best[recipe] = row
    return best


def description(rows: Sequence[Row], best: Mapping[str, Row], *, own: str, first: str = "") -> str:
    """Return a sweep in Markdown: the best trial of each recipe, and as many trials as fit.

    Args:
        rows: all trials.
        best: by recipe.
        own: the id of the sweep's run.
        first: Markdown that it begins with.
    """
    lines = [*first.splitlines(), ""] if first else []
    lines += [
        f"Best of {recipe} on `val`: {row.name}, {row.metric} {row.best:.4g}, run {row.run_id}."
        for recipe, row in best.items()
    ]
    lines += ["", "| trial | on `val` | | run |", "|---|---:|---|---|"]
    for number, row in enumerate(rows):
        score = ABSENT if row.best is None else f"{row.metric} {row.best:.4g}"
        where = f"{row.run_id}{'' if row.parent == own or not row.run_id else ' (not begun here)'}"
        line = f"| {row.name} | {score} | {row.how} | {where} |"
        if sum(map(len, lines)) + len(lines) + len(line) > NOTE_LENGTH:
            return "\n".join([*lines, "", f"and {len(rows) - number} more, which `{TRIALS}` lists."])
        lines.append(line)
    return "\n".join(lines)
