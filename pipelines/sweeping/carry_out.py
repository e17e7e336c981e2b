"""Train the cells of a plan side by side, in one Ray session, and settle how each ended."""

from __future__ import annotations

import math
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from filelock import FileLock, Timeout

from infra.errors import InputError
from infra.files import make_folder
from infra.ray.session import Resources, cores, ray_session
from infra.ray.tuning import Ended, Halving, run_side_by_side
from infra.tracking import RunRecord, Tracker
from pipelines.sweeping.cell_work import CellWork
from pipelines.sweeping.estimate import spoken
from pipelines.sweeping.found import STOPPED, SWEEP, Found, key, records_of
from pipelines.sweeping.plan import Plan
from pipelines.training.runs import tags
from tasks.base import Metric


@dataclass(frozen=True, kw_only=True)
class Result:
    """How the cells of a sweep ended, those that it trained.

    Attributes:
        trained: to the end.
        stopped: early, with after how many epochs.
        failed: with the error.
    """

    trained: list[Found] = field(default_factory=list)
    stopped: list[tuple[Found, str]] = field(default_factory=list)
    failed: list[tuple[Found, str]] = field(default_factory=list)


ERROR = "error.txt"
"""The artifact of a failed run that has all that is known of the failure."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the cells are recorded: the tracking store, the project's home, the experiment."""

    uri: str
    home: Path
    experiment: str


@contextmanager
def alone(home: Path, experiment: str) -> Iterator[None]:
    """Let one sweep of an experiment at a time be at work, so that what is unfinished is nobody's.

    Raises:
        InputError: another one is.
    """
    folder = make_folder(home / "runs")
    path = folder / f"sweep-{re.sub(r'[^A-Za-z0-9_.-]', '_', experiment)}.lock"
    try:
        held = FileLock(path).acquire(blocking=False)
    except Timeout:
        raise InputError(
            f"another sweep of experiment {experiment!r} is at work (it holds {path}): wait for it, or use another "
            "--experiment"
        ) from None
    with held:
        yield


def fitting(found: Sequence[Found]) -> int:
    """Return how many cells the cluster has cores and GPUs for at once, at least one; needs a Ray session."""
    most = math.inf
    for run in (each.cell.run for each in found):
        each = Resources.plan(run.workers, cpus=run.cpus)
        most = min(most, cores() // (each.cpus * run.workers))
        if each.gpu:
            most = min(most, cores("GPU") // run.workers)
    return max(1, int(most)) if found else 1


def carry_out(
    plan: Plan, place: Place, *, concurrent: int = 0, metrics: dict[str, Metric] | None = None
) -> Result:
    """Train what is to be done.

    Args:
        plan: the cells.
        place: where they are recorded.
        concurrent: cells at once; where 0, as many as fit.
        metrics: by recipe, what the poor cells are stopped early by; None to stop none.
    """
    result, cells = Result(), plan.to_do
    if not cells:
        return result
    with ray_session():
        concurrent = concurrent or fitting(cells)
        print(f"{plan.summary()}, {concurrent} at once", flush=True)
        # scores of different recipes cannot be compared, so that each has a race of its own
        groups = [cells] if metrics is None else _by_recipe(cells)
        for group in groups:
            _train(group, result, place, concurrent=concurrent, metrics=metrics)
    return result


def _by_recipe(cells: Sequence[Found]) -> list[list[Found]]:
    recipes = dict.fromkeys(found.cell.run.recipe for found in cells)
    return [[found for found in cells if found.cell.run.recipe == recipe] for recipe in recipes]


def _train(
    cells: Sequence[Found],
    result: Result,
    place: Place,
    *,
    concurrent: int,
    metrics: dict[str, Metric] | None,
) -> None:
    """Train some cells, and add how they ended to the result."""
    sweep, halving, decide = f"sweep-{secrets.token_hex(4)}", None, {}
    if metrics is not None:
        run = cells[0].cell.run
        primary = metrics[run.recipe]
        decide = {run.recipe: f"dev/{primary.name}"}
        halving = Halving(
            metric=f"dev/{primary.name}", higher_is_better=primary.higher_is_better, epochs=run.optim.epochs
        )
    started, before = time.monotonic(), sum(map(len, (result.trained, result.stopped, result.failed)))
    ends: dict[int, Ended] = {}

    def ended(end: Ended) -> None:
        ends[end.number] = end
        error = _error(end)
        how = (
            f"failed: {last_line(error)}"
            if error
            else ("done" if "run_id" in end.result else "stopped early")
        )
        past = spoken(time.monotonic() - started)
        print(f"[{before + len(ends)}, {past}] {cells[end.number].cell.name}: {how}", flush=True)

    try:
        run_side_by_side(
            CellWork(cells=tuple(cells), sweep=sweep, uri=place.uri, home=place.home, metric=decide),
            len(cells),
            concurrent=concurrent,
            folder=place.home / "runs" / sweep,
            halving=halving,
            ended=ended,
        )
    finally:
        _settle(cells, ends, result, place, sweep)


def last_line(error: str) -> str:
    """Return what a traceback ends with."""
    return error.strip().splitlines()[-1]


def _error(end: Ended) -> str:
    return end.error or str(end.result.get("error", ""))


def _of_sweep(place: Place, sweep: str) -> dict[tuple[str, ...], RunRecord]:
    records = records_of(place.uri, place.experiment)
    return {key(record.tags): record for record in records if record.tags.get(SWEEP) == sweep}


def _settle(cells: Sequence[Found], ends: dict[int, Ended], result: Result, place: Place, sweep: str) -> None:
    """Note how each cell ended, in the result and in what was recorded of those whose process was ended."""
    records = _of_sweep(place, sweep)
    for number, found in enumerate(cells):
        end, record = ends.get(number), records.get(key(tags(found.cell.run)))
        found = replace(found, run_id=record.run_id if record else "")
        tracker = Tracker.attach(place.uri, record.run_id, running=False) if record else None
        error = _error(end) if end else ""
        if error:
            result.failed.append((found, last_line(error)))
            if tracker:
                tracker.text(ERROR, error)
                tracker.finish("FAILED")
        elif end and ("run_id" in end.result or (record and record.status == "FINISHED")):
            result.trained.append(found)  # a short run may end before it can be stopped
        elif end:
            epochs = f"after epoch {int(end.result.get('epoch', 0))} of {found.cell.run.optim.epochs}"
            result.stopped.append((found, epochs))
            if tracker:
                tracker.tags({STOPPED: epochs})
                tracker.finish("KILLED")
        elif tracker and record.status == "RUNNING":  # the sweep was interrupted
            tracker.finish("KILLED")
