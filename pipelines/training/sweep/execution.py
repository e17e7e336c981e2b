"""Trials of a plan trained side by side, in one Ray session."""

from __future__ import annotations

import math
import os
import re
import secrets
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from polypool.infra.errors import InputError
from polypool.infra.files import make_folder
from polypool.infra.locks import HeldError, Lock
from polypool.infra.process.memory import release_memory
from polypool.infra.process.output import JSON, TEXT, log_line, mode
from polypool.infra.process.progress import waiting
from polypool.infra.process.stopping import Stopped, graceful_stop
from polypool.infra.ray import Ended, Halving, Resources, cores, ray_session, run_side_by_side
from polypool.infra.spec import trust_modules, trusted
from polypool.infra.text_tables import duration
from polypool.infra.tracking import COMMAND, PARENT, Tracker, command_line
from polypool.pipelines.training.record import send, take_run
from polypool.pipelines.training.sweep.plan import Plan
from polypool.pipelines.training.sweep.trials import STOPPED, SWEEP, Match, records_of
from polypool.pipelines.training.train import (
    CHECKPOINT_SECONDS,
    TrialOptions,
    checkpoints_at,
    new_runs_at,
    resume,
    start,
    trains_here,
)

_ENDING = 60.0  # seconds for the process of a trial that was told to end
ERROR = "error.txt"
"""The artifact of a failed run with the whole error."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a trial that was trained ended.

    Attributes:
        match: the trial and its run.
        how: trained to the end, stopped early, or failed.
        detail: after which epoch it was stopped, or the last line of the error.
    """

    match: Match
    how: Literal["trained", "stopped", "failed"]
    detail: str = ""


def outcome_text(plan: Plan, outcomes: Sequence[Outcome]) -> str:
    """Return the report of a sweep: numbers of trials by outcome, and those that were stopped or failed."""
    ways = {"trained": "trained", "stopped": "stopped early", "failed": "failed"}
    ends = {way: [each for each in outcomes if each.how == way] for way in ways}
    lines = [", ".join(f"{len(ends[way])} {ways[way]}" for way in ways if ends[way] or way == "trained")]
    if not plan.to_do:
        lines = [plan.summary()]
    before = [match for match in plan.matches if match.state == "stopped" and match not in plan.to_do]
    stopped = [(each.match, each.detail) for each in ends["stopped"]]
    if stopped := [*stopped, *((match, match.stopped) for match in before)]:
        lines += ["", "stopped early, and so in no comparison:"]
        lines += [f"  {match.trial.name}: {when}, run {match.run_id}" for match, when in stopped]
    if ends["failed"]:
        lines += ["", "failed:"]
        for each in ends["failed"]:
            run = f" (run {each.match.run_id})" if each.match.run_id else ""
            lines.append(f"  {each.match.trial.name}{run}: {each.detail}")
    return "\n".join(lines)


@contextmanager
def alone(home: Path, experiment: str) -> Iterator[None]:
    """Hold the lock on the sweeps of an experiment.

    Raises:
        InputError: another sweep of it is at work.
    """
    path = home / "runs" / f"sweep-{re.sub(r'[^A-Za-z0-9_.-]', '_', experiment)}.lock"
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


def _in_its_process(match: Match) -> bool:
    """Whether a trial trains in its own process, and needs no workers beside it."""
    at = checkpoints_at(match.run_id, match.at) if match.run_id else new_runs_at()
    return trains_here(match.trial.run, at=at, in_sweep=True)


def carry_out(plan: Plan, *, concurrent: int = 0, parent: str = "") -> list[Outcome]:
    """Train what is to be done.

    Args:
        plan: the trials.
        concurrent: the most trials at once; 0 for as many as fit.
        parent: the run of the sweep, to which new runs belong; empty for none.
    """
    outcomes: list[Outcome] = []
    matches = plan.to_do
    if not matches:
        return outcomes
    groups: dict[tuple[tuple[str, ...], bool], list[Match]] = {}
    for match in matches:  # scores of different recipes cannot be compared to stop the worse ones
        rivals = match.trial.rivals if plan.early_stop else ()
        groups.setdefault((rivals, _in_its_process(match)), []).append(match)
    with ray_session(dashboard=not all(alone for _, alone in groups)):
        at_once, _ = _resources(matches, concurrent=concurrent)
        print(f"{plan.summary()}, {at_once} at once", flush=True)
        for (_, alone), group in groups.items():
            reserved = _resources(group, concurrent=at_once)[1] if alone else {}
            outcomes += _train(
                plan, group, concurrent=at_once, reserved=reserved, parent=parent, before=len(outcomes)
            )
    return outcomes


def _train(
    plan: Plan,
    matches: Sequence[Match],
    *,
    concurrent: int,
    reserved: Mapping[str, float],
    parent: str,
    before: int,
) -> list[Outcome]:
    """Train some trials of a plan, after `before` others; with early stopping, rivals alone."""
    sweep, halving = f"sweep-{secrets.token_hex(4)}", None
    if plan.early_stop:
        run = matches[0].trial.run
        primary = plan.metrics[run.recipe]
        halving = Halving(
            metric=f"dev/{primary.name}", higher_is_better=primary.higher_is_better, epochs=run.optim.epochs
        )
    started, ends, patience = time.monotonic(), dict[int, Ended](), ExitStack()
    stop = make_folder(plan.home / "runs" / sweep) / "stop"

    def ended(end: Ended) -> None:
        patience.close()
        ends[end.number] = end
        if not stop.exists():
            error = _error(end)
            done = "done" if "run_id" in end.result else "stopped early"
            how = f"failed: {last_line(error)}" if error else done
            past, whole = time.monotonic() - started, len(plan.to_do)
            left = past / len(ends) * (whole - before - len(ends))
            _tell(f"{matches[end.number].trial.name}: {how}", before + len(ends), whole, past=past, left=left)

    work = Work(
        matches=tuple(matches),
        uri=plan.uri,
        home=plan.home,
        metric=halving.metric if halving else "",
        trusted=trusted(),
        sweep=sweep,
        tags={COMMAND: command_line(), **({PARENT: parent} if parent else {})},
        stop=stop,
    )
    outcomes: list[Outcome] = []
    patience.enter_context(waiting(f"the first of {len(matches)} trials to end", after=10.0))
    try:
        with graceful_stop(stop.touch, seconds=CHECKPOINT_SECONDS):
            run_side_by_side(
                work,
                len(matches),
                concurrent=concurrent,
                folder=stop.parent,
                resources=reserved,
                retries=max(match.trial.run.retries for match in matches) if reserved else 0,
                halving=halving,
                ended=ended,
            )
    finally:
        patience.close()
        outcomes = _settle(plan, matches, ends, sweep)
    return outcomes


def _tell(what: str, done: int, total: int, *, past: float, left: float) -> None:
    """Print that a trial ended, how many have of all, and the seconds that passed and that the rest will take."""
    if mode() == JSON:
        log_line(event="progress", what=what, done=done, total=total, unit="trial", seconds_left=round(left))
    elif mode() == TEXT:
        soon = f", {duration(left)} left" if done < total else ""
        print(f"[{done}/{total}, {duration(past)}{soon}] {what}", flush=True)


@dataclass(frozen=True, kw_only=True)
class Work:
    """Trains the trial of a number, in a process of its own.

    Attributes:
        matches: the trials, and the runs to resume.
        uri: the tracking store.
        home: the project's.
        metric: decides which trials are stopped early; empty where none are.
        trusted: modules whose code specs may name.
        sweep: its name.
        tags: of new runs.
        stop: a file that ends all trials, each after a checkpoint, once it exists.
    """

    matches: tuple[Match, ...]
    uri: str
    home: Path
    metric: str
    trusted: tuple[str, ...]
    sweep: str
    tags: Mapping[str, str]
    stop: Path

    def __call__(self, number: int) -> dict[str, Any]:
        """Train a trial; return the id of its run, or its error."""
        os.environ |= {"POLYPOOL_HOME": str(self.home), "MLFLOW_TRACKING_URI": self.uri}
        trust_modules(*self.trusted)
        if self.stop.exists():
            return {"stopped": True}
        match, options = self.matches[number], TrialOptions(stop=self.stop, metric=self.metric)
        begun = self.stop.with_name(f"{number}.run")  # left by a process that died
        try:
            if run_id := begun.read_text() if begun.exists() else match.run_id:
                again = {SWEEP: of_trial(self.sweep, number), STOPPED: ""}
                return {"run_id": resume(run_id, more_tags=again, trial=options)}
            new = {SWEEP: of_trial(self.sweep, number), **self.tags, **match.trial.tags}
            return {"run_id": start(match.trial.run, more_tags=new, trial=options, begun=begun.write_text)}
        except Stopped:
            return {"stopped": True}
        except InputError as error:
            return {"error": str(error)}
        except Exception as error:  # the other trials go on
            return {"error": "".join(traceback.format_exception(error))}
        finally:
            release_memory()


def of_trial(sweep: str, number: int) -> str:
    """Return the tag `SWEEP` of a trial."""
    return f"{sweep}/{number}"


def last_line(error: str) -> str:
    """Return the last line of a traceback."""
    return error.strip().splitlines()[-1]


def _error(end: Ended) -> str:
    return end.error or str(end.result.get("error", ""))


def _settle(plan: Plan, matches: Sequence[Match], ends: Mapping[int, Ended], sweep: str) -> list[Outcome]:
    """Return how each trial ended, and set the status of runs whose process was killed."""
    records = records_of(plan.uri, plan.experiment)
    own = {record.tags.get(SWEEP): record for record in records}
    patience = _ENDING if len(ends) == len(matches) else 0.0  # none after Ctrl-C
    outcomes: list[Outcome] = []
    for number, match in enumerate(matches):
        end, record = ends.get(number), own.get(of_trial(sweep, number))
        match = replace(match, run_id=record.run_id if record else "")
        tracker = Tracker.attach(plan.uri, record.run_id, running=False) if record else None
        if tracker:
            _send_rest(tracker, patience=patience)
        if end is None:
            if tracker and record and record.status == "RUNNING":  # the sweep was interrupted
                tracker.finish("KILLED")
        elif error := _error(end):
            outcomes.append(Outcome(match=match, how="failed", detail=last_line(error)))
            if tracker:
                tracker.text(ERROR, error)
                tracker.finish("FAILED")
        elif "stopped" in end.result:
            continue  # its run has that status
        elif "run_id" in end.result or (record and record.status == "FINISHED"):
            outcomes.append(
                Outcome(match=match, how="trained")
            )  # a short run may end before it can be stopped
        else:
            epochs = f"after epoch {int(end.result.get('epoch', 0))} of {match.trial.run.optim.epochs}"
            outcomes.append(Outcome(match=match, how="stopped", detail=epochs))
            if tracker:
                tracker.tags({STOPPED: epochs})
                tracker.finish("KILLED")
    return outcomes


def _send_rest(tracker: Tracker, *, patience: float) -> None:
    """Send the log of a run whose process was told to end, which may still be at work for some seconds."""
    limit = time.monotonic() + patience
    while True:
        try:
            with take_run(tracker):
                return send(tracker)
        except HeldError:
            if time.monotonic() >= limit:
                return None
            time.sleep(0.2)
