"""Copies of MLflow's runs in other trackers.

A run's own process knows no mirror: any run can be mirrored, running or finished, from any machine that reaches MLflow.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from polypool.infra.errors import InputError
from polypool.infra.tracking import RunRecord, Tracker, find_runs, resolve_run
from polypool.infra.tracking.tracker import Point
from polypool.tasks.run import WITHOUT_EFFECT


class Mirror(Protocol):
    """Another tracker. A run begins there, in place of an earlier copy of it, with the first that is added to it."""

    def has_whole(self, record: RunRecord) -> bool:
        """Whether all of a run is there as it ended."""

    def points(self, record: RunRecord, points: Sequence[Point]) -> None:
        """Add numbers, which are in the order of their steps."""

    def pictures(self, record: RunRecord, paths: Sequence[Path]) -> None:
        """Add PNG files."""

    def close(self, record: RunRecord) -> None:
        """Write no more of a run, which may still be running."""


def mirror(
    to: Mirror, *, uri: str, experiment: str, run_ids: Sequence[str] = (), every: float = 0.0
) -> tuple[int, int]:
    """Mirror runs; return how many had something new, and how many are still running.

    Args:
        to: the other tracker.
        uri: MLflow's store.
        experiment: of the runs.
        run_ids: the only ones mirrored; empty for all.
        every: seconds between two rounds, which go on until interrupted; 0 for one round.

    Raises:
        InputError: the store does not answer, or has no such experiment or run in it.
    """
    sent: dict[str, Counter[str]] = {}
    records = _chosen(uri, experiment, run_ids)
    try:
        counts = _send_new(to, uri, records, sent)
        while every:
            time.sleep(every)
            records = _chosen(uri, experiment, run_ids)
            _send_new(to, uri, records, sent)
    finally:
        for record in records:
            if record.run_id in sent:
                to.close(record)
    return counts


def _chosen(uri: str, experiment: str, run_ids: Sequence[str]) -> list[RunRecord]:
    """Return the runs, earliest first, without those that logged nothing and the plans of sweeps."""
    records = {record.run_id: record for record in reversed(find_runs(uri, experiment, finished=False))}
    run_ids = [resolve_run(uri, named) for named in run_ids]
    for run_id in run_ids:
        if run_id not in records:
            raise InputError(
                f"no run {run_id!r} in experiment {experiment!r}: `polypool runs --experiment {experiment}` "
                "lists those it has, and --experiment names another"
            )
    wanted = [records[run_id] for run_id in run_ids] if run_ids else records.values()
    return [record for record in wanted if record.metrics and record.tags.get("kind") != "sweep"]


def _send_new(
    to: Mirror, uri: str, records: Sequence[RunRecord], sent: dict[str, Counter[str]]
) -> tuple[int, int]:
    """Send what the mirror lacks of some runs; return how many had something new, and how many are still running.

    Args:
        to: the mirror.
        uri: MLflow's store.
        records: of the runs.
        sent: of the runs that have begun there and not ended, how many numbers of each metric were sent; is updated.
    """
    new = 0
    for record in records:
        if record.run_id not in sent and to.has_whole(record):
            continue
        tracker, counts = (
            Tracker.attach(uri, record.run_id, running=False),
            sent.setdefault(record.run_id, Counter()),
        )
        points = [
            point for name in sorted(record.metrics) for point in tracker.points_of(name)[counts[name] :]
        ]
        counts.update(name for name, *_ in points)
        if points:
            to.points(record, sorted(points, key=lambda point: point[3]))
            new += 1
        if record.status != "RUNNING":
            _end(to, record, tracker)
            del sent[record.run_id]
    return new, sum(record.status == "RUNNING" for record in records)


def _end(to: Mirror, record: RunRecord, tracker: Tracker) -> None:
    from polypool.pipelines.training.run_results import PICTURES  # imports torch

    with suppress(InputError):  # it drew none
        to.pictures(record, sorted(tracker.download(PICTURES).glob("*.png")))
    to.close(record)


def settings(record: RunRecord) -> dict[str, float | str]:
    """Return the settings of a run that its result depends on, as numbers if they are numbers, without empty ones."""
    given = {
        name: text for name, text in record.params.items() if name.partition(".")[0] not in WITHOUT_EFFECT
    }
    return {name: _number(text) for name, text in given.items() if text not in ("", "[]", "{}")}


def results(record: RunRecord) -> dict[str, float]:
    """Return a run's metrics of the test split, under its own protocol and those that all tasks share."""
    of = ("test/", f"{record.tags.get('protocol', 'test')}/")
    return {name: value for name, value in record.metrics.items() if name.startswith(of)}


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
