"""Sweeps: trials (recipes x aggregators x seeds), their recorded runs, tuning with equal budgets, and the training.

A sweep is a run in MLflow, the parent of the runs that it starts; a run that existed before keeps its parent, if any.
Trials train in parallel in one Ray session, or one after another without Ray (see `carry_out`).
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
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from polypool.aggregators.aggregator import Aggregator
from polypool.infra.compute.unfilled import Unfilled
from polypool.infra.errors import AbsentError, InputError, unknown
from polypool.infra.fields import above, require
from polypool.infra.files import make_folder, read_json
from polypool.infra.locks import HeldError, Lock
from polypool.infra.paths import here, home
from polypool.infra.process import stopping
from polypool.infra.process.output import JSON, TEXT, log_line, mode
from polypool.infra.process.stopping import Stopped, graceful_stop, resume_hint
from polypool.infra.ray import (
    Halving,
    Resources,
    TrialResult,
    cores,
    local_cores,
    on_cluster,
    ray_session,
    run_side_by_side,
)
from polypool.infra.registry import AGGREGATORS, Spec
from polypool.infra.spec import (
    changed,
    format_value,
    split_values,
    trust_flags,
    trust_modules,
    trust_specs,
    trusted,
    without,
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
    GPU_LOAD,
    GPU_MEMORY,
    Listed,
    Tuned,
    listed,
    locked_run,
    process_of,
    run_folder,
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
"""Its artifacts: a row for each trial; the budget, the space and the choice for each aggregator."""
SWEEP = "sweep"
"""The tag with the last sweep that trained a run, and the number of the trial in it."""
STOPPED = "stopped"
"""The tag of a run that was stopped early, with the epoch."""
ERROR = "error.txt"
"""The artifact of a failed run with the whole error."""
SEED = 1000
"""First seed of the tuning trials of sample 0; seeds of sample 1 begin at 1100, and so on."""
OWN = {
    "--aggregator": "--aggregators",
    "--text-aggregator": "--text-aggregators",
    "--seed": "--seeds",
    "--recipe": "--recipes",
}
"""Flags of a run that a sweep sets itself, and its options for them."""
_KEYS = ("task", "dataset", "recipe", "aggregator", "text_aggregator", "model", "seed", "protocol")
_JOB = ("ray", "job", "submit", "--working-dir", ".", "--", "python", "-m", "polypool")
_ENDING = 60.0  # seconds to wait for a stopped trial's process
_OPTIM = "optim."
_TRIAL_SEEDS = 100  # at most; also the distance between first seeds of two samples

# --- trials


State = Literal["finished", "stopped", "unfinished", "running", "new", "trained", "failed"]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run of a sweep, and its state before or after the sweep.

    Attributes:
        run: to train.
        tunes: the aggregator whose settings are tuned, as in `Tuned.aggregator`; empty for none.
        chosen: the tuned settings with their values.
        tuned: how they were chosen.
        state: before the sweep: `finished`; `stopped` early; `running` in another process; `unfinished`, to resume; or
            `new` if no run with these settings can be skipped or resumed. After its training: `trained`, `stopped` or
            `failed`.
        run_id: its run; empty for a new trial.
        at: URL of the run's checkpoints, as in its tag.
        detail: when it was stopped, or the last line of the error.
        note: of a new trial: which run does not match it and why; of a running one: the process that trains it.
    """

    run: Run
    tunes: str = ""
    chosen: tuple[tuple[str, str], ...] = ()
    tuned: Tuned | None = None
    state: State = "new"
    run_id: str = ""
    at: str = ""
    detail: str = ""
    note: str = ""

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


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The trials of a sweep, recipe by recipe.

    Attributes:
        trials: the trials.
        metrics: by recipe, the metric that chooses its best epoch.
        flags: settings of every recipe, as words of the command line.
        sources: by recipe, the name or file that was given for it.
        experiment: MLflow experiment of the runs.
        early_stop: whether poor trials are stopped early; earlier stopped ones are then not resumed.
    """

    trials: tuple[Trial, ...]
    metrics: Mapping[str, Metric]
    flags: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    experiment: str = Run.experiment
    early_stop: bool = False

    @property
    def to_do(self) -> list[Trial]:
        """The trials to train."""
        done = ("finished", "running", *(("stopped",) if self.early_stop else ()))
        return [trial for trial in self.trials if trial.state not in done]

    def print_notes(self) -> None:
        """Print a line for each trial that has a note."""
        for trial in self.trials:
            if trial.note:
                how = "left alone" if trial.state == "running" else "trained again"
                print(f"{trial.name} is {how}: {trial.note}")

    def summary(self) -> str:
        """Return one line with the numbers of trials by state."""
        counts: Counter[str] = Counter(trial.state for trial in self.trials)
        then = "not resumed" if self.early_stop else "to resume, since --early-stop is not given"
        skipped = f", {counts['finished']} of them finished before and skipped" if counts["finished"] else ""
        others = {
            "running": "running in another process",
            "unfinished": "interrupted before, to resume from the last checkpoint",
            "stopped": f"stopped early before, {then}",
        }
        parts = [f"{counts[state]} {text}" for state, text in others.items() if counts[state]]
        trials = f"{len(self.trials)} trial{'s' * (len(self.trials) > 1)}{skipped}"
        return "; ".join([trials, *parts, f"{len(self.to_do)} to train"])

    def text(self, records: Sequence[RunRecord], *, concurrent: int = 0, words: Sequence[str] = ()) -> str:
        """Return the output of `--dry-run`.

        Args:
            records: runs from which times are estimated.
            concurrent: parallel trials; 0 for as many as this machine has cores for.
            words: of the command line, without `--dry-run`.
        """
        to_do, width = self.to_do, max(len(trial.name) for trial in self.trials)
        largest = max(trial.run.cpus * trial.run.workers for trial in self.trials)
        concurrent = concurrent or max(1, local_cores() // largest)
        times = {trial: seconds(trial.run, records) for trial in to_do}
        lines = [self.summary(), ""]
        for trial in self.trials:
            time = times.get(trial)
            about = f"about {duration(time)}" if time is not None else "time unknown"
            state = f"{trial.state} ({trial.detail})" if trial.detail else trial.state
            parts = [state, trial.run_id and f"run {trial.run_id}", about if trial in times else ""]
            note = f"; {trial.note}" if trial.note else ""
            lines.append(f"  {trial.name:<{width}}  {', '.join(filter(None, parts))}{note}")
        if to_do:
            whole = duration(total([*times.values()], concurrent))
            lines += ["", f"estimated time, {concurrent} at once: {whole}"]
            lines += ["", "as one Ray job:", f"  {shlex.join([*_JOB, 'sweep', *words])}"]
            if alone := [trial for trial in to_do if not trial.tunes]:
                lines += ["", "or a job for each trial:", *(f"  {self.job(trial)}" for trial in alone)]
        return "\n".join(lines)

    def job(self, trial: Trial) -> str:
        """Return the command line that trains one trial as a Ray job."""
        run = trial.run
        if trial.run_id:
            return shlex.join([*_JOB, "train", "resume", trial.run_id, *trust_flags(modules(run))])
        words, source = ["--aggregator", run.aggregator], self.sources.get(run.recipe, run.recipe)
        if run.text_aggregator != read_run(source, self.flags).text_aggregator:
            words += ["--text-aggregator", run.text_aggregator]
        words += ["--seed", str(run.seed), "--experiment", run.experiment]
        return shlex.join([*_JOB, "train", source, *self.flags, *words])


def make_plan(
    recipes: Sequence[str],
    aggregators: Sequence[str],
    *,
    text_aggregators: Sequence[str] = (),
    seeds: int = 1,
    first_seed: int = 0,
    experiment: str = "polypool",
    flags: Sequence[str] = (),
    early_stop: bool = False,
) -> Plan:
    """Return every combination once, after building each model without weights.

    Args:
        recipes: names of recipes of one run each.
        aggregators: specs; of the visual side only if there are text aggregators.
        text_aggregators: specs of the text side; if none, the recipe's own, else the visual one.
        seeds: their number.
        first_seed: the first of them.
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
    runs, sources = list[Run](), dict[str, str]()
    for name in dict.fromkeys(recipes):
        with _noting(wrong):
            runs.append(replace(read_run(name, flags), experiment=experiment))
            sources[runs[-1].recipe] = name
    if len({run.recipe for run in runs}) < len(runs):
        wrong.append(f"--recipes {' '.join(recipes)}: several change one recipe; sweep them one at a time")
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
        for v, t, seed in itertools.product(
            visual, text or [run.text_aggregator], range(first_seed, first_seed + seeds)
        )
    ]
    return Plan(
        trials=tuple(trials),
        metrics=metrics,
        flags=tuple(flags),
        sources=sources,
        experiment=experiment,
        early_stop=early_stop,
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


def records_of(experiment: str) -> list[RunRecord]:
    """Return all runs of an experiment, latest first; none if the store or the experiment does not exist yet.

    Raises:
        InputError: the store does not answer or cannot be used.
    """
    try:
        return find_runs(tracking_uri(home()), experiment, finished=False)
    except AbsentError:
        return []


def match_trials(trials: Sequence[Trial], records: Sequence[RunRecord]) -> tuple[Trial, ...]:
    """Return the trials with their runs, found among the experiment's `records`, which are sorted latest first."""
    by_tags: dict[tuple[str, ...], list[RunRecord]] = defaultdict(list)
    for record in records:
        if record.tags.get("kind") == "train":
            by_tags[_key(record.tags, run=record.run_id)].append(record)
    artifacts = Artifacts(tracking_uri(home()))
    return tuple(_matched(artifacts, trial, by_tags[_key(trial.tags)]) for trial in trials)


def _key(of: Mapping[str, str], *, run: str = "") -> tuple[str, ...]:
    """Return the tags that identify a trial, with canonical specs; `run` is the id of its run, for messages."""
    values = {name: of.get(name, "") for name in _KEYS}
    own = tuple(_spelled(value) if "aggregator" in name else value for name, value in values.items())
    tuned = tuned_of(of, run=run)
    return own + ((tuned.named, tuned.words) if tuned else ())


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


def _matched(artifacts: Artifacts, trial: Trial, candidates: Sequence[RunRecord]) -> Trial:
    trial = Trial(run=trial.run, tunes=trial.tunes, chosen=trial.chosen, tuned=trial.tuned)
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
            return replace(trial, state="finished", run_id=record.run_id)
    for record in same:
        process, holder = process_of(record, home=home())
        if process == "alive":
            note = f"{holder.partition(':')[0]} is training it"
            return replace(trial, state="running", run_id=record.run_id, note=note)
        if record.status == "FAILED":
            notes.append(f"run {record.run_id} failed")
        elif record.tags.get(SWEEP) or process == "dead":
            epochs, at = record.tags.get(STOPPED, ""), record.tags.get(AT, "")
            if not at and record.metrics and not run_folder(home(), record.run_id).exists():
                notes.append(f"run {record.run_id} may be it, but its folder is not here")
                continue
            state = "stopped" if epochs else "unfinished"
            return replace(trial, state=state, run_id=record.run_id, at=at, detail=epochs)
        elif process == "unknown":
            notes.append(f"run {record.run_id} may be it, trained on another machine: its folder is not here")
    return replace(trial, note="; ".join(notes[:1]))


# --- the estimated time


def seconds(run: Run, records: Sequence[RunRecord]) -> float | None:
    """Estimate a run's time, scaled to its epochs; None if no run of its recipe on its data has finished.

    The median over the finished runs with its aggregator, or else over all. The time outside training is bounded,
    because it includes the pause before a run was resumed.
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
    """Return the time of all trials, `concurrent` at once; None if one is unknown."""
    known = [time for time in times if time is not None]
    if len(known) < len(times):
        return None
    return max(max(known, default=0.0), sum(known) / concurrent)


# --- the search space of a tuned sweep, and the points that an aggregator tries

Values = Mapping[str, tuple[Any, ...]]
Point = tuple[tuple[str, Any], ...]
"""A value for each setting, such as `(("optim.lr", 0.001), ("kmax.k", 2))`."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """Values by setting, in the order of names.

    Attributes:
        shared: of settings that all aggregators have: `optim.NAME`, and `aggregator.lr` if they have weights.
        own: of options of single aggregators, `NAME.OPTION`.
        sides: the settings of a run with the specs of swept aggregators.
    """

    shared: Values
    own: Values
    sides: tuple[str, ...] = ("aggregator",)

    def own_of(self, run: Run) -> Values:
        """Return the values of options of a run's aggregators."""
        names = {Spec.parse(spec).name for spec in self.specs(run).values()}
        return {name: values for name, values in self.own.items() if _owner(name) in names}

    def specs(self, run: Run) -> dict[str, str]:
        """Return the specs of a run's swept aggregators, by side."""
        return {side: spec for side in self.sides if (spec := getattr(run, side))}

    def unchosen(self, run: Run) -> str:
        """Return the specs of a run's aggregators without the tuned options."""
        return ", text ".join(_unchosen(spec, self.own) for spec in self.specs(run).values())

    def options(self, run: Run, *, weights: bool) -> Values:
        """Return the values of all settings that affect a run.

        Args:
            run: with its recipe's settings.
            weights: whether its aggregators have weights, which `aggregator.lr` affects.
        """
        every = {**self.shared, **self.own_of(run)}
        return {name: values for name, values in every.items() if weights or name != FACTOR}

    def points(self, run: Run, *, weights: bool, budget: int, seed: int) -> list[Point]:
        """Return the points that the aggregators of a run try: their whole space, or a sample of `budget` points.

        The first one is nearest to the run's own settings. A sample is a Latin hypercube (McKay, Beckman and Conover,
        Technometrics 21, 1979) without duplicates: each value of a setting occurs equally often, up to a difference of
        one. Runs with equal spaces and nearest points have the same sample.

        Args:
            run: with its recipe's settings.
            weights: as in `options`.
            budget: maximum number of points.
            seed: of the sample.
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
    """Return a spec without its tuned options."""
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
        text_aggregators: specs of the text side, if they are swept.
        read: returns the run with some flags of `polypool train`, which parses the values of `optim.NAME`.

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
    """Return a value of a setting from its text, with the type that a run has."""
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
    known = {f"{_OPTIM}{field.name}": field.name for field in fields(Optim)}
    if name not in known:
        why = " It takes a list of values of settings that hold one each, or an option of one aggregator of the sweep."
        raise unknown("setting of --choose:", name, [*known, FACTOR, *options], why)
    return getattr(read([f"--{name.replace('_', '-')}", word]).optim, known[name])


def _latin_hypercube(values: Values, first: Point, *, budget: int, size: int, seed: int) -> list[Point]:
    """Return distinct points, beginning with `first`, in which each value of a setting occurs equally often.

    For more than half of all points the complement is drawn.

    Args:
        values: by setting.
        first: one of their points.
        budget: number of points, at most `size`.
        size: number of all points.
        seed: of the sample.
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
            rng.shuffle(others)  # if the counts cannot be equal, the last ones occur once less
            rest = [*itertools.islice(itertools.cycle([nearest, *others]), budget)][1:]
            rng.shuffle(rest)
            columns.append([nearest, *rest])
        # swap values of a setting, which keeps their counts, until no point occurs twice
        for _ in range(100 * budget):
            points = [tuple(zip(values, point, strict=True)) for point in zip(*columns, strict=True)]
            twice = [at for at, point in enumerate(points) if point in points[:at]]
            if not twice:
                return points
            column, one, other = rng.choice(columns), rng.choice(twice), rng.randrange(1, budget)
            column[one], column[other] = column[other], column[one]


def _nearest(values: Sequence[Any], to: Any) -> Any:
    """Return the value nearest to a number, by ratio if all are above 0; for other types, the equal or first value."""
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
    """Return learning rate factors, multiplied by a number for the weights under some prefixes."""
    if by == 1:
        return tuple(factors)
    inside = {prefix: longest_prefix(factors, prefix, default=1.0) for prefix in prefixes}
    inside |= {name: factor for name, factor in factors if name.startswith(tuple(prefixes))}
    return tuple((dict(factors) | {name: factor * by for name, factor in inside.items()}).items())


def _as_text(values: Values) -> Listed:
    return tuple((name, tuple(map(format_value, of))) for name, of in values.items())


# --- tuning with equal budgets: the trials of every aggregator, scored on `val` only, and their choice


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The tuning trials of a sweep.

    Attributes:
        plan: the trials of all recipes and aggregators, each with `Trial.tunes`: `trial_seeds` in a row for each point,
            the point nearest to the recipe first.
        space: of their settings.
        budget: maximum number of points per aggregator.
        trial_seeds: number of seeds of each point.
        sample: seed of the sample of each aggregator's space.
        sizes: numbers of points of the spaces, by recipe and aggregator.
        seeds: seeds of the final runs of each aggregator.
    """

    plan: Plan
    space: Space
    budget: int
    trial_seeds: int
    sample: int
    sizes: Mapping[tuple[str, str], int]
    seeds: Sequence[int]

    @property
    def notes(self) -> list[str]:
        """The number of points and the size of the space, a line for all aggregators that share them."""
        groups: dict[tuple[str, int], list[str]] = defaultdict(list)
        for (recipe, aggregator), size in self.sizes.items():
            groups[recipe, size].append(aggregator)
        return [
            f"{recipe}: {min(size, self.budget)} of {size:,} points each: {', '.join(names)}"
            for (recipe, size), names in groups.items()
        ]

    @property
    def words(self) -> str:
        """The budget and the space, as tables show them."""
        words = self.tuned(self.plan.trials[0], sweep="").words
        return f"{words}; and {listed(_as_text(self.space.own))}" if self.space.own else words

    def tuned(self, trial: Trial, *, sweep: str) -> Tuned:
        """Return the record of the runs with the settings of a trial; `sweep` is the run id of the sweep."""
        return Tuned(
            aggregator=trial.tunes,
            budget=self.budget,
            trial_seeds=self.trial_seeds,
            space=_as_text(self.space.shared),
            own=_as_text(self.space.own_of(trial.run)),
            early_stop=self.plan.early_stop,
            chosen=trial.chosen,
            sweep=sweep,
            seed=self.sample,
        )


def make_tuning(
    plan: Plan,
    settings: Sequence[str],
    *,
    text_aggregators: bool,
    budget: int,
    sample: int,
    trial_seeds: int = 1,
) -> Tuning:
    """Return the tuning trials of a sweep, after building a model for each value that may change it.

    Args:
        plan: the same sweep without tuning.
        settings: `SETTING=VALUE,VALUE` texts, which span the space.
        text_aggregators: whether the text's aggregators are swept, too.
        budget: points per aggregator and recipe.
        sample: seed of the sample of each aggregator's space.
        trial_seeds: seeds of each point, at most 100.

    Raises:
        InputError: unusable arguments.
        SystemExit: with code 2, after a message: an unusable value of a setting.
    """
    if budget < 1:
        raise InputError(f"--choose needs --budget, the trials of each aggregator: at least 1, not {budget}")
    if not 1 <= trial_seeds <= _TRIAL_SEEDS:
        raise InputError(f"--trial-seeds must be from 1 to {_TRIAL_SEEDS}, not {trial_seeds}")
    seeds = [*dict.fromkeys(trial.run.seed for trial in plan.trials)]
    first_seed = SEED + _TRIAL_SEEDS * sample
    runs = [trial.run for trial in plan.trials if trial.run.seed == seeds[0]]
    space = read_space(
        settings,
        aggregators=[run.aggregator for run in runs],
        text_aggregators=[run.text_aggregator or run.aggregator for run in runs if text_aggregators],
        read=lambda flags: read_run(plan.sources.get(runs[0].recipe, runs[0].recipe), [*plan.flags, *flags]),
    )
    wrong, sizes, tried = list[str](), dict[tuple[str, str], int](), list[Trial]()
    assets: dict[str, dict[str, Any]] = defaultdict(dict)  # by recipe, whose data are read once
    checked: set[tuple[object, ...]] = set()

    def adapter_of(run: Run) -> TaskAdapter:
        adapter = prepare(run, **assets[run.recipe])
        assets[run.recipe] = {"assets": adapter.assets}
        return adapter

    for run in runs:
        prefixes, tunes = aggregator_prefixes(adapter_of(run)), space.unchosen(run)
        options = space.options(run, weights=bool(prefixes))
        points = space.points(run, weights=bool(prefixes), budget=budget, seed=sample)
        sizes[run.recipe, tunes] = math.prod(map(len, options.values()))
        alone = [((name, x),) for name, of in space.options(run, weights=True).items() for x in of]
        made = {point: space.at(run, point, prefixes=prefixes) for point in (*alone, *points)}
        texts = {point: tuple((name, format_value(value)) for name, value in point) for point in made}
        for point, at in made.items():
            parts = {(at.recipe, at.aggregator, at.text_aggregator), (at.recipe, at.optim)}
            with _noting(wrong, f"{run.recipe} {tunes} with {text_of(texts[point])}: "):
                if not parts <= checked:  # parts that several runs share are checked once
                    adapter_of(at)
                checked |= parts
        tried += [
            Trial(run=replace(made[point], seed=seed, test=False), tunes=tunes, chosen=texts[point])
            for point in points
            for seed in range(first_seed, first_seed + trial_seeds)
        ]
    _refuse(wrong)
    return Tuning(
        plan=replace(plan, trials=tuple(tried)),
        space=space,
        budget=budget,
        trial_seeds=trial_seeds,
        sample=sample,
        sizes=sizes,
        seeds=seeds,
    )


def aggregator_prefixes(adapter: TaskAdapter) -> tuple[str, ...]:
    """Return the names of the outermost aggregators with weights in a task's model."""
    with Unfilled():
        model = adapter.model(pretrained=False)
    weights, found = [name for name, _ in model.named_parameters()], list[str]()
    for name, module in model.named_modules():
        if isinstance(module, Aggregator) and not name.startswith(tuple(f"{outer}." for outer in found)):
            found.append(name)
    return tuple(name for name in found if any(weight.startswith(f"{name}.") for weight in weights))


def choose(
    plan: Plan, table: pd.DataFrame, *, sizes: Mapping[tuple[str, str], int], seeds: int = 1
) -> pd.DataFrame:
    """Return the best point of each recipe and aggregator by the mean of its seeds, the first of equal ones, in a row.

    Args:
        plan: of the trials.
        table: from `outcomes`.
        sizes: as in `Tuning`.
        seeds: trials of each point.

    Returns:
        Columns `recipe`; `aggregator`, without the tuned options; `metric` on `val`; `space`, its number of points;
        `trials`, the number of tried points; `whole`, how many of them have complete trials of all seeds; `default`,
        the mean of the first point, which is nearest to the recipe's settings; and of the best point: `best`, its mean,
        `chosen`, its settings, `run_id` and `trial`, the run and the position in the plan of its first seed. If no
        point is complete, these are NaN, empty, empty and -1.
    """
    rows = []
    for (recipe, aggregator), size in sizes.items():
        own_N = ((table["recipe"] == recipe) & (table["tunes"] == aggregator)).to_numpy().nonzero()[0]
        group = table.iloc[own_N]
        score_P = group["score"].where(group["whole"]).to_numpy().reshape(-1, seeds).mean(1)
        best_P = group["best"].to_numpy().reshape(-1, seeds).mean(1)
        whole = int(np.isfinite(score_P).sum())
        point = int(np.nanargmax(score_P)) if whole else -1
        at = int(own_N[point * seeds]) if whole else -1
        row = {
            "recipe": recipe,
            "aggregator": aggregator,
            "metric": plan.metrics[recipe].name,
            "space": size,
            "trials": len(score_P),
            "whole": whole,
            "default": best_P[0],
            "best": best_P[point] if whole else math.nan,
            "chosen": text_of(plan.trials[at].chosen) if whole else "",
            "run_id": table["run_id"].iloc[at] if whole else "",
            "trial": at,
        }
        rows.append(row)
    return pd.DataFrame(rows)


def choice_table(choices: pd.DataFrame, *, words: str) -> Table:
    """Return the choice for every aggregator as a table; `words` are the budget and the space."""
    rows, failed = [], []
    for each in choices.to_dict("records"):
        label = f"{each['recipe']} {each['aggregator']}"
        scores = (
            ABSENT if math.isnan(score) else f"{score:.4g}" for score in (each["default"], each["best"])
        )
        trials = (
            str(each["trials"]) if each["whole"] == each["trials"] else f"{each['whole']} of {each['trials']}"
        )
        rows.append((label, each["chosen"] or ABSENT, each["metric"], *scores, trials, f"{each['space']:,}"))
        if each["trial"] < 0:
            failed.append(f"{label} is not run, as none of its trials was trained to the end")
    return Table(
        title="chosen on val",
        legend=(
            words,
            "default: the first trial, nearest to the recipe's own settings; space: points that trials are drawn from",
        ),
        header=("recipe and aggregator", "chosen", "metric", "default", "chosen's", "trials", "space"),
        rows=tuple(rows),
        notes=tuple(failed),
    )


# --- the training


def only_sweep(experiment: str) -> Lock:
    """Lock the sweeps of an experiment.

    Raises:
        HeldError: another sweep of it is running.
    """
    path = home() / "runs" / f"sweep-{re.sub(r'[^A-Za-z0-9_.-]', '_', experiment)}.lock"
    return Lock(path, of=f"experiment {experiment!r}: another sweep of it is running")


def _resources(trials: Sequence[Trial], *, concurrent: int = 0) -> tuple[int, dict[str, float]]:
    """Return the number of parallel trials, and the resources that each reserves in its process.

    Args:
        trials: the trials; the largest one decides.
        concurrent: maximum number of parallel trials, which share GPUs if there are fewer; 0 for as many as fit.
    """
    most, reserved = concurrent or math.inf, {"CPU": 0.0}
    for run in (trial.run for trial in trials):
        each = Resources.plan(run.workers, fewest=run.worker_counts[0], cpus=run.cpus)
        most = min(most, cores() // (each.cpus * run.workers))
        reserved["CPU"] = max(reserved["CPU"], each.cpus)
        if each.gpu:
            sharing = math.ceil(max(concurrent, 1) / cores("GPU"))
            most = min(most, sharing * cores("GPU") // run.workers)
            reserved["GPU"] = math.floor(1e4 / sharing) / 1e4  # Ray counts resources in units of 1e-4
    return max(1, int(most)), reserved


def carry_out(plan: Plan, *, concurrent: int = 0, parent: str = "") -> list[Trial]:
    """Train the trials to do, and return them with their outcomes.

    With `concurrent` 1, trials that all have one worker train in this process, without Ray, unless they may be stopped
    early or RAY_ADDRESS names a cluster. Interrupted ones come last, because a trial that the system kills for its
    memory ends this process.

    With `concurrent` 0, the first trials, at least one of each recipe and one on each GPU, have a GPU to themselves;
    the others share GPUs, as many as the memory and load of the first allow. With early stopping none share, because
    rivals train together.

    Args:
        plan: the trials.
        concurrent: maximum number of parallel trials; 0 for as many as fit.
        parent: run id of the sweep, the parent of new runs; empty for none.
    """
    ends: list[Trial] = []
    if not (to_do := plan.to_do):
        return ends
    groups: dict[tuple[tuple[str, ...], bool], list[Trial]] = defaultdict(list)
    for trial in to_do:  # scores of different recipes cannot be compared to stop the worse ones
        at = checkpoints_at(trial.run_id, trial.at) if trial.run_id else new_runs_at()
        alone = trains_here(trial.run, at=at, in_sweep=True)
        groups[(trial.run.recipe, trial.tunes) if plan.early_stop else (), alone].append(trial)
    alone = all(alone for _, alone in groups)
    here = concurrent == 1 and alone and not plan.early_stop and not on_cluster()
    with nullcontext() if here else ray_session(dashboard=not alone):
        at_once = 1 if here else _resources(to_do, concurrent=concurrent)[0]
        print(f"{plan.summary()}, {at_once} at once", flush=True)
        for (_, alone), group in groups.items():
            waves = [sorted(group, key=lambda trial: trial.state == "unfinished") if here else group]
            if alone and not concurrent and not plan.early_stop and (gpus := cores("GPU")):
                first = {trial.run.recipe: trial for trial in reversed(group)}.values()
                ordered = sorted(group, key=lambda trial: trial not in first)
                count = max(len(first), gpus)
                waves = [wave for wave in (ordered[:count], ordered[count:]) if wave]
            for number, wave in enumerate(waves):
                if number:
                    sharing = _sharing(plan, ends)
                    at_once = _resources(wave, concurrent=sharing * cores("GPU"))[0]
                    print(
                        f"trials on each GPU, by memory and load: {sharing}; {at_once} at once",
                        flush=True,
                    )
                side_by_side = None
                if not here:
                    reserved = _resources(wave, concurrent=at_once)[1] if alone else {}
                    retries = max(trial.run.retries for trial in wave) if alone else 0
                    side_by_side = functools.partial(
                        run_side_by_side, concurrent=at_once, resources=reserved, retries=retries
                    )
                ends += _train(plan, wave, side_by_side, parent=parent, before=len(ends))
    return ends


def trials_per_gpu(*, memory: float, load: float) -> int:
    """Return the number of trials that share a GPU: as many as fit into 90 % of its memory and all of its time.

    Args:
        memory: share of the memory that a trial reserves.
        load: share of the time in which its steps keep the GPU busy.
    """
    return max(1, int(min(0.9 / memory, 1 / load)))


def _sharing(plan: Plan, ends: Sequence[Trial]) -> int:
    """Return the number of trials that share a GPU, by the largest trained one; 1 if none was measured."""
    trained = {end.run_id for end in ends}
    metrics = [record.metrics for record in records_of(plan.experiment) if record.run_id in trained]
    return min(
        (trials_per_gpu(memory=of[GPU_MEMORY], load=of[GPU_LOAD]) for of in metrics if GPU_LOAD in of),
        default=1,
    )


def _train(
    plan: Plan,
    trials: Sequence[Trial],
    side_by_side: Callable[..., None] | None,
    *,
    parent: str,
    before: int,
) -> list[Trial]:
    """Train some trials of a plan, after `before` others; with early stopping, only rivals.

    Without `side_by_side` they train one after another in this process.
    """
    sweep, halving = f"sweep-{secrets.token_hex(4)}", None
    if plan.early_stop:
        run = trials[0].run
        primary = plan.metrics[run.recipe]
        halving = Halving(
            metric=f"dev/{primary.name}", higher_is_better=primary.higher_is_better, epochs=run.optim.epochs
        )
    started, ends = time.monotonic(), dict[int, TrialResult]()
    stop = make_folder(home() / "runs" / sweep) / "stop"

    def ended(end: TrialResult) -> None:
        ends[end.number] = end
        if stop.exists():
            return
        done, whole = before + len(ends), len(plan.to_do)
        how = "done" if "run_id" in end.result else "stopped early"
        what = f"{trials[end.number].name}: {f'failed: {_last_line(end.error)}' if end.error else how}"
        past = time.monotonic() - started
        left = past / len(ends) * (whole - done)
        if mode() == JSON:
            about = {"what": what, "done": done, "total": whole, "unit": "trial", "seconds_left": round(left)}
            log_line(event="progress", **about)
        elif mode() == TEXT:
            soon = f", {duration(left)} left" if done < whole else ""
            print(f"[{done}/{whole}, {duration(past)}{soon}] {what}", flush=True)

    environment = {"POLYPOOL_HOME": str(home()), "MLFLOW_TRACKING_URI": tracking_uri(home())}
    train = functools.partial(
        train_trial,
        trials=tuple(trials),
        options=TrialOptions(stop=stop, metric=halving.metric if halving else ""),
        environment=environment if side_by_side else {},
        trust=trusted(),
        sweep=sweep,
        tags={COMMAND: command_line(), **({PARENT: parent} if parent else {})},
    )
    try:
        with resume_hint(stopping.invocation()), graceful_stop(stop.touch, seconds=CHECKPOINT_SECONDS):
            if side_by_side:
                side_by_side(train, len(trials), folder=stop.parent, halving=halving, on_end=ended)
            else:
                for number in range(len(trials)):
                    result = train(number)
                    ended(TrialResult(number=number, result=result, error=result.get("error", "")))
    finally:
        shutil.rmtree(stop.parent, ignore_errors=True)
        settled = _settle(plan, trials, ends, sweep)
    return settled


def train_trial(
    number: int,
    *,
    trials: Sequence[Trial],
    options: TrialOptions,
    environment: Mapping[str, str],
    trust: Sequence[str],
    sweep: str,
    tags: Mapping[str, str],
) -> dict[str, Any]:
    """Train a trial in this process; return the id of its run, its error, or that it was stopped.

    Args:
        number: of the trial.
        trials: all trials.
        options: of each trial.
        environment: variables that a Ray process lacks.
        trust: modules whose code specs may name.
        sweep: name of the sweep, for the runs' tag.
        tags: of new runs.
    """
    os.environ |= environment
    trust_modules(*trust)
    if options.stop.exists():
        return {"stopped": True}
    trial = trials[number]
    begun, own = options.stop.with_name(f"{number}.run"), {SWEEP: f"{sweep}/{number}"}
    try:
        # the file was left by a process that died
        if run_id := begun.read_text() if begun.exists() else trial.run_id:
            return {"run_id": resume(run_id, more_tags=own | {STOPPED: ""}, trial=options)}
        new = {**own, **tags, **trial.tags}
        return {"run_id": start(trial.run, more_tags=new, trial=options, begun=begun.write_text)}
    except Stopped:
        return {"stopped": True}
    except InputError as error:
        return {"error": str(error)}
    except Exception as error:  # the other trials go on
        return {"error": "".join(traceback.format_exception(error))}
    finally:
        gc.collect()  # the model may be in a cycle, and another trial comes
        if not gc.get_freeze_count():
            gc.freeze()  # later collections skip the imported libraries


def _last_line(error: str) -> str:
    return error.strip().splitlines()[-1]


def _settle(plan: Plan, trials: Sequence[Trial], ends: Mapping[int, TrialResult], sweep: str) -> list[Trial]:
    """Return trials with their outcomes, and set the status of runs whose process was killed."""
    own = {record.tags.get(SWEEP): record for record in records_of(plan.experiment)}
    patience = _ENDING if len(ends) == len(trials) else 0.0  # none after Ctrl-C
    settled: list[Trial] = []
    for number, trial in enumerate(trials):
        end, record = ends.get(number), own.get(f"{sweep}/{number}")
        done = replace(trial, state="trained", detail="", run_id=record.run_id if record else "")
        tracker = Tracker.attach(tracking_uri(home()), record.run_id, running=False) if record else None
        if tracker:
            with suppress(HeldError), take_run(tracker, seconds=patience):  # a process that was told to end
                send(tracker)
        if end is None:
            if tracker and record and record.status == "RUNNING":  # the sweep was interrupted
                tracker.finish("KILLED")
        elif end.error:
            settled.append(replace(done, state="failed", detail=_last_line(end.error)))
            if tracker:
                tracker.text(ERROR, end.error)
                tracker.finish("FAILED")
        elif "stopped" in end.result:
            continue  # its run has that status
        elif "run_id" in end.result or (record and record.status == "FINISHED"):
            settled.append(done)  # a short run may end before it can be stopped
        else:
            epochs = f"after epoch {int(end.result.get('epoch', 0))} of {trial.run.optim.epochs}"
            settled.append(replace(done, state="stopped", detail=epochs))
            if tracker:
                tracker.tags({STOPPED: epochs})
                tracker.finish("KILLED")
    return settled


# --- a whole sweep, and its run


def sweep(
    plan: Plan, tuning: Tuning | None = None, *, concurrent: int = 0, params: Mapping[str, Any]
) -> tuple[Plan, Plan, list[Trial], Table | None]:
    """Train the missing trials, recorded as a run: a grid, or tuning trials and then runs with the best settings.

    Args:
        plan: the grid.
        tuning: its tuning trials, if any.
        concurrent: parallel trials; 0 for as many as fit.
        params: options of the sweep, for its run.

    Returns:
        The plan of all trials; the plan of the trials to compare, which are the final runs of a tuned sweep, or all of
        a grid; the trained trials with their outcomes; and the table of choices of a tuned sweep, else None.

    Raises:
        InputError: another sweep of the experiment is running, or the store does not answer.
    """
    with only_sweep(plan.experiment):
        records = records_of(plan.experiment)
        plan = matched(tuning.plan if tuning else plan, records)
        if tuning:
            print("".join(f"{line}\n" for line in tuning.notes), end="")
        plan.print_notes()
        to_do = bool(plan.to_do or (tuning and final_plan(tuning, plan, [])[0].to_do))
        parent = open_parent(plan, records, params=params, to_do=to_do)
        run_id, final, shown = parent.run_id if parent else "", plan, None
        with locked_run(parent) if parent else nullcontext():
            ends = carry_out(plan, concurrent=concurrent, parent=run_id)
            if tuning:
                final, choices = final_plan(tuning, plan, ends, sweep=run_id)
                shown = choice_table(choices, words=tuning.words)
                print(f"\n{as_text(shown)}\n", flush=True)
                final.print_notes()
                ends += carry_out(final, concurrent=concurrent, parent=run_id)
                plan = replace(plan, trials=(*plan.trials, *final.trials))
                if parent:
                    chosen = choices.drop(columns="trial").astype(object).where(choices.notna(), None)
                    about = {
                        "budget": tuning.budget,
                        "trial_seeds": tuning.trial_seeds,
                        "sample": tuning.sample,
                        "shared": tuning.space.shared,
                        "own": tuning.space.own,
                        "chosen": chosen.to_dict("records"),
                    }
                    parent.json(TUNING, about)
        if parent:
            conclude(parent, plan, ends, first=as_markdown(shown) if shown else "")
    return plan, final, ends, shown


def matched(plan: Plan, records: Sequence[RunRecord]) -> Plan:
    """Return a plan with the run of each trial; see `match_trials`."""
    return replace(plan, trials=match_trials(plan.trials, records))


def final_plan(
    tuning: Tuning, first: Plan, ends: Sequence[Trial], *, sweep: str = ""
) -> tuple[Plan, pd.DataFrame]:
    """Return the runs with the best settings of the tuning trials, and the choices.

    Args:
        tuning: the tuned sweep.
        first: its tuning trials.
        ends: the trained ones with their outcomes.
        sweep: run id of the sweep.
    """
    choices = choose(first, outcomes(first, ends), sizes=tuning.sizes, seeds=tuning.trial_seeds)
    best = [first.trials[at] for at in choices["trial"] if at >= 0]
    trials = [
        Trial(
            run=replace(trial.run, seed=seed, test=True),
            tunes=trial.tunes,
            chosen=trial.chosen,
            tuned=tuning.tuned(trial, sweep=sweep),
        )
        for trial in best
        for seed in tuning.seeds
    ]
    final = replace(first, trials=tuple(trials), early_stop=False)
    return matched(final, records_of(first.experiment)), choices


def preview(
    plan: Plan, tuning: Tuning | None = None, *, concurrent: int = 0, words: Sequence[str] = ()
) -> str:
    """Return the output of `--dry-run`: the trials, and the final runs of a tuned sweep.

    Args:
        plan: the grid.
        tuning: its tuning trials, if any.
        concurrent: parallel trials; 0 for as many as this machine has cores for.
        words: of the command line, without `--dry-run`.
    """
    records = records_of(plan.experiment)
    timed = [*records, *records_of(Run.experiment)]
    first = matched(tuning.plan if tuning else plan, records)
    text = first.text(timed, concurrent=concurrent, words=words)
    if not tuning:
        return text
    lines = [tuning.words, *tuning.notes, "", "tuning trials, scored on val only:", text, ""]
    if first.to_do:
        final_runs = len(tuning.sizes) * len(tuning.seeds)
        return "\n".join(
            [*lines, f"then {final_runs} runs with the best settings, not included in this time"]
        )
    final, choices = final_plan(tuning, first, [])
    lines += [as_text(choice_table(choices, words=tuning.words)), ""]
    if final.trials:
        lines += ["runs with the best settings:", final.text(timed, concurrent=concurrent, words=words)]
    return "\n".join(lines)


def outcome_text(plan: Plan, ends: Sequence[Trial]) -> str:
    """Return the report of a sweep: numbers of trials by outcome, and a list of stopped and failed ones."""
    ways = {"trained": "trained", "stopped": "stopped early", "failed": "failed"}
    by_way = {way: [end for end in ends if end.state == way] for way in ways}
    lines = [", ".join(f"{len(by_way[way])} {ways[way]}" for way in ways if by_way[way] or way == "trained")]
    if not plan.to_do:
        lines = [plan.summary()]
    before = [trial for trial in plan.trials if trial.state == "stopped" and trial not in plan.to_do]
    if stopped := [*by_way["stopped"], *before]:
        lines += ["", "stopped early, and so in no comparison:"]
        lines += [f"  {trial.name}: {trial.detail}, run {trial.run_id}" for trial in stopped]
    if by_way["failed"]:
        lines += ["", "failed:"]
        for end in by_way["failed"]:
            run = f" (run {end.run_id})" if end.run_id else ""
            lines.append(f"  {end.name}{run}: {end.detail}")
    return "\n".join(lines)


def open_parent(
    plan: Plan, records: Sequence[RunRecord], *, params: Mapping[str, Any], to_do: bool
) -> Tracker | None:
    """Return the run of a plan, from an earlier start or a new one.

    Args:
        plan: of the sweep.
        records: of the experiment, latest first.
        params: options of the sweep.
        to_do: whether a trial is missing.

    Returns:
        None if no trial is missing and no earlier start of this plan is unfinished.

    Raises:
        InputError: the store does not answer.
    """
    runs = [trial.run for trial in plan.trials]
    trials = sorted(
        json.dumps({name: x for name, x in to_json(run).items() if name not in WITHOUT_EFFECT})
        for run in runs
    )
    tuned = [
        str(params[name]) for name in ("budget", "trial_seeds", "sample", "seeds") if params.get("choose")
    ]
    named = hashlib.sha256(json.dumps([trials, plan.early_stop, *tuned]).encode()).hexdigest()
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
        plan.experiment,
        uri=tracking_uri(home()),
        home=home(),
        name=f"{'tuned ' * bool(params.get('choose'))}sweep of {own['recipe']}, {len(runs)} trials",
        tags=own | {"kind": KIND, PLAN: named, NOTE: plan.summary()},
        params={**params, "trials": len(runs)},
    )


def conclude(tracker: Tracker, plan: Plan, ends: Sequence[Trial], *, first: str = "") -> None:
    """Record the outcome of every trial and the best ones; the sweep fails if a trial did.

    Args:
        tracker: of the sweep's run.
        plan: all trials.
        ends: the trained ones, with their outcomes.
        first: Markdown at the beginning of its description.

    Raises:
        InputError: the store does not answer.
    """
    table = outcomes(plan, ends)
    tracker.table(TRIALS, table.loc[:, :"parent"].to_dict("list"))
    best = best_of(table)
    rows = best.to_dict("records")
    best_values = {f"best/{row['recipe'] or 'run'}/{row['metric']}": row["best"] for row in rows}
    tracker.log(best_values, step=0)
    named = {f"best.{row['recipe']}": row["run_id"] for row in rows}
    tracker.tags(named | {NOTE: description(table, best, own=tracker.run_id, first=first)})
    if any(end.state == "failed" for end in ends):
        tracker.finish("FAILED")


def outcomes(plan: Plan, ends: Sequence[Trial]) -> pd.DataFrame:
    """Return a row for each trial of a plan.

    Args:
        plan: the trials, with their states before the sweep.
        ends: the trained ones, with their outcomes.

    Returns:
        The columns of `trials.json`: `name`; `how` it ended, such as `trained`; `run_id`; `metric`; `best`, its best
        value on `val`, NaN if no epoch was scored; `parent`, the run id of the sweep that began it. Others: `recipe`;
        `tunes`; `test`, whether it scores the test split; `whole`, whether it is complete, now or before; `score`, the
        best value, negated if lower is better.
    """
    records = {record.run_id: record for record in records_of(plan.experiment)}
    by_run, rows = {end.run: end for end in ends}, []
    for trial in plan.trials:
        metric, end = plan.metrics[trial.run.recipe], by_run.get(trial.run)
        how = f"{trial.state} before"
        if end:
            how = f"stopped {end.detail}" if end.state == "stopped" else end.state
        run_id = (end or trial).run_id
        record = records.get(run_id)
        row = {
            "name": trial.name,
            "how": how,
            "run_id": run_id,
            "metric": metric.name,
            "best": record.metrics.get(f"dev/best_{metric.name}", math.nan) if record else math.nan,
            "parent": record.tags.get(PARENT, "") if record else "",
            "recipe": trial.run.recipe,
            "tunes": trial.tunes,
            "test": trial.run.test,
            "whole": how in ("trained", "finished before"),
        }
        rows.append(row | {"score": metric.sign * row["best"]})
    return pd.DataFrame(rows)


def best_of(table: pd.DataFrame) -> pd.DataFrame:
    """Return the best trial of each recipe, in a row, among the complete ones that score the test split."""
    score = (
        table[table["whole"] & table["test"]].dropna(subset="score").groupby("recipe", sort=False)["score"]
    )
    return table.loc[score.idxmax()]


def description(table: pd.DataFrame, best: pd.DataFrame, *, own: str, first: str = "") -> str:
    """Return a sweep in Markdown: the best trial of each recipe, and as many trials as fit.

    Args:
        table: from `outcomes`.
        best: from `best_of`.
        own: run id of the sweep.
        first: Markdown to begin with.
    """
    lines = [*first.splitlines(), ""] if first else []
    lines += [
        f"Best of {row['recipe']} on `val`: {row['name']}, {row['metric']} {row['best']:.4g}, run {row['run_id']}."
        for row in best.to_dict("records")
    ]
    lines += ["", "| trial | on `val` | | run |", "|---|---:|---|---|"]
    for number, row in enumerate(table.to_dict("records")):
        score = ABSENT if math.isnan(row["best"]) else f"{row['metric']} {row['best']:.4g}"
        elsewhere = row["run_id"] and row["parent"] != own
        line = f"| {row['name']} | {score} | {row['how']} | {row['run_id']}{' (started before)' * bool(elsewhere)} |"
        if sum(map(len, lines)) + len(lines) + len(line) > NOTE_LENGTH:
            return "\n".join([*lines, "", f"and {len(table) - number} more, which `{TRIALS}` lists."])
        lines.append(line)
    return "\n".join(lines)
