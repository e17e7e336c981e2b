"""Train the trials of a plan side by side, in one Ray session, and settle how each ended."""

from __future__ import annotations

import math
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from infra.errors import InputError
from infra.files import make_folder
from infra.process.lease import BEAT_SECONDS, STALE_SECONDS, HeldError, Lease
from infra.process.stopping import Stopped, asked_first
from infra.ray.session import Resources, cores, ray_session
from infra.ray.tuning import Ended, Halving, reporter, run_side_by_side
from infra.tables import duration
from infra.tracking import RunRecord, Tracker
from infra.tracking.provenance import command_line
from infra.tracking.tracker import COMMAND, PARENT
from infra.trust import trust_modules, trusted
from pipelines.sweeping.matching import STOPPED, SWEEP, Match, key, records_of
from pipelines.sweeping.plan import Plan
from pipelines.training.folder import AT, checkpoints_at, take_run
from pipelines.training.ray_train import CHECKPOINT_SECONDS
from pipelines.training.recording.described import tags
from pipelines.training.runs import resume, send, start
from tasks.base import Metric
from tasks.run import Run


@dataclass(frozen=True, kw_only=True)
class Result:
    """How the trials of a sweep ended, those that it trained.

    Attributes:
        trained: to the end.
        stopped: early, with after how many epochs.
        failed: with the error.
    """

    trained: list[Match] = field(default_factory=list)
    stopped: list[tuple[Match, str]] = field(default_factory=list)
    failed: list[tuple[Match, str]] = field(default_factory=list)


ERROR = "error.txt"
"""The artifact of a failed run that has all that is known of the failure."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the trials are recorded: the tracking store, the project's home, the experiment."""

    uri: str
    home: Path
    experiment: str


@contextmanager
def alone(home: Path, experiment: str) -> Iterator[None]:
    """Let one sweep of an experiment at a time be at work, so that what is unfinished is nobody's.

    Raises:
        InputError: another one is.
    """
    path = home / "runs" / f"sweep-{re.sub(r'[^A-Za-z0-9_.-]', '_', experiment)}.lock"
    with Lease.take(path, of=f"experiment {experiment!r}: another sweep of it is at work"):
        yield


def fitting(matches: Sequence[Match]) -> int:
    """Return how many trials the cluster has cores and GPUs for at once, at least one; needs a Ray session."""
    most = math.inf
    for run in (match.trial.run for match in matches):
        each = Resources.plan(run.workers, fewest=run.worker_counts[0], cpus=run.cpus)
        most = min(most, cores() // (each.cpus * run.workers))
        if each.gpu:
            most = min(most, cores("GPU") // run.workers)
    return max(1, int(most)) if matches else 1


def carry_out(
    plan: Plan,
    place: Place,
    *,
    concurrent: int = 0,
    metrics: dict[str, Metric] | None = None,
    parent: str = "",
) -> Result:
    """Train what is to be done.

    Args:
        plan: the trials.
        place: where they are recorded.
        concurrent: trials at once; where 0, as many as fit.
        metrics: by recipe, what the poor trials are stopped early by; None to stop none.
        parent: the run that stands for the sweep, to which new runs belong; none where empty.
    """
    result, matches = Result(), plan.to_do
    if not matches:
        return result
    with ray_session(shared=True):
        concurrent = concurrent or fitting(matches)
        print(f"{plan.summary()}, {concurrent} at once", flush=True)
        # scores of different recipes cannot be compared, so that each has a race of its own
        groups = [matches] if metrics is None else _by_recipe(matches)
        for group in groups:
            _train(group, result, place, concurrent=concurrent, metrics=metrics, parent=parent)
    return result


def _by_recipe(matches: Sequence[Match]) -> list[list[Match]]:
    recipes = dict.fromkeys(match.trial.run.recipe for match in matches)
    return [[match for match in matches if match.trial.run.recipe == recipe] for recipe in recipes]


def _train(
    matches: Sequence[Match],
    result: Result,
    place: Place,
    *,
    concurrent: int,
    metrics: dict[str, Metric] | None,
    parent: str,
) -> None:
    """Train some trials, and add how they ended to the result."""
    sweep, halving, decide = f"sweep-{secrets.token_hex(4)}", None, {}
    if metrics is not None:
        run = matches[0].trial.run
        primary = metrics[run.recipe]
        decide = {run.recipe: f"dev/{primary.name}"}
        halving = Halving(
            metric=f"dev/{primary.name}", higher_is_better=primary.higher_is_better, epochs=run.optim.epochs
        )
    started, before = time.monotonic(), sum(map(len, (result.trained, result.stopped, result.failed)))
    ends: dict[int, Ended] = {}

    stop = make_folder(place.home / "runs" / sweep) / "stop"

    def ended(end: Ended) -> None:
        ends[end.number] = end
        if stop.exists():
            return
        error = _error(end)
        how = (
            f"failed: {last_line(error)}"
            if error
            else ("done" if "run_id" in end.result else "stopped early")
        )
        past = duration(time.monotonic() - started)
        print(f"[{before + len(ends)}, {past}] {matches[end.number].trial.name}: {how}", flush=True)

    work = Work(
        matches=tuple(matches),
        sweep=sweep,
        uri=place.uri,
        home=place.home,
        metric=decide,
        trusted=trusted(),
        command=command_line(),
        parent=parent,
        stop=stop,
    )
    try:
        with asked_first(stop.touch, seconds=CHECKPOINT_SECONDS):
            run_side_by_side(
                work,
                len(matches),
                concurrent=concurrent,
                folder=stop.parent,
                halving=halving,
                ended=ended,
            )
    finally:
        _settle(matches, ends, result, place, sweep)


@dataclass(frozen=True, kw_only=True)
class Work:
    """Trains the trial of a number, in a process of its own.

    Attributes:
        matches: the trials to train, and the runs that they go on with.
        sweep: name of this sweep, a tag of its runs.
        uri: the tracking store.
        home: the project's.
        metric: by recipe, the metric that decides which trials are stopped early; empty where none are.
        trusted: modules whose code specs may name.
        command: the sweep's own command line, which its runs came from.
        parent: the run that stands for the sweep, to which the runs that begin here belong; none where empty.
        stop: a file that ends all trials, each after a checkpoint, once it is there.
    """

    matches: tuple[Match, ...]
    sweep: str
    uri: str
    home: Path
    metric: dict[str, str]
    trusted: tuple[str, ...]
    command: str
    parent: str
    stop: Path

    def __call__(self, number: int) -> dict[str, Any]:
        """Train a trial; return the id of its run, or what went wrong."""
        os.environ |= {"POLYPOOL_HOME": str(self.home), "MLFLOW_TRACKING_URI": self.uri}
        trust_modules(*self.trusted)
        if self.stop.exists():
            return {"stopped": True}
        match = self.matches[number]
        run: Run = match.trial.run
        try:
            metric = self.metric.get(run.recipe)
            callbacks = [reporter(metric)] if metric else []
            if match.run_id:
                again = {SWEEP: self.sweep, STOPPED: ""}
                return {"run_id": resume(match.run_id, more_tags=again, stop=self.stop, callbacks=callbacks)}
            sweep = {SWEEP: self.sweep, COMMAND: self.command} | (
                {PARENT: self.parent} if self.parent else {}
            )
            return {"run_id": start(run, more_tags=sweep, stop=self.stop, callbacks=callbacks)}
        except Stopped:
            return {"stopped": True}
        except InputError as error:
            return {"error": str(error)}
        except Exception as error:  # whatever it is, the other trials go on
            return {"error": f"{type(error).__name__}: {error}"}


def last_line(error: str) -> str:
    """Return what a traceback ends with."""
    return error.strip().splitlines()[-1]


def _error(end: Ended) -> str:
    return end.error or str(end.result.get("error", ""))


def _of_sweep(place: Place, sweep: str) -> dict[tuple[str, ...], RunRecord]:
    records = records_of(place.uri, place.experiment)
    return {key(record.tags): record for record in records if record.tags.get(SWEEP) == sweep}


def _last_words(tracker: Tracker, place: Place, *, patience: float) -> None:
    """Send what a run logged whose process was ended, which it may not be yet."""
    limit = time.monotonic() + patience
    while True:
        try:
            with take_run(place.home, tracker.run_id, checkpoints_at(tracker.run_id, tracker.tag(AT))):
                return send(tracker)
        except HeldError:
            if time.monotonic() >= limit:
                return None
            time.sleep(0.2)


def _settle(
    matches: Sequence[Match], ends: dict[int, Ended], result: Result, place: Place, sweep: str
) -> None:
    """Note how each trial ended, in the result and in what was recorded of those whose process was ended."""
    records = _of_sweep(place, sweep)
    patience = STALE_SECONDS + BEAT_SECONDS if len(ends) == len(matches) else 0.0  # none where Ctrl-C came
    for number, match in enumerate(matches):
        end, record = ends.get(number), records.get(key(tags(match.trial.run)))
        match = replace(match, run_id=record.run_id if record else "")
        tracker = Tracker.attach(place.uri, record.run_id, running=False) if record else None
        if tracker:
            _last_words(tracker, place, patience=patience)
        error = _error(end) if end else ""
        if error:
            result.failed.append((match, last_line(error)))
            if tracker:
                tracker.text(ERROR, error)
                tracker.finish("FAILED")
        elif end and "stopped" in end.result:
            continue  # its run says so
        elif end and ("run_id" in end.result or (record and record.status == "FINISHED")):
            result.trained.append(match)  # a short run may end before it can be stopped
        elif end:
            epochs = f"after epoch {int(end.result.get('epoch', 0))} of {match.trial.run.optim.epochs}"
            result.stopped.append((match, epochs))
            if tracker:
                tracker.tags({STOPPED: epochs})
                tracker.finish("KILLED")
        elif tracker and record.status == "RUNNING":  # the sweep was interrupted
            tracker.finish("KILLED")
