"""Copies of MLflow's runs in other trackers.

A run's own process knows no mirror: any run can be mirrored, running or finished, from any machine that reaches MLflow.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from polypool.infra.errors import InputError
from polypool.infra.tracking import RunRecord, Tracker, find_runs
from polypool.infra.tracking.tracker import Point
from polypool.tasks.run import WITHOUT_EFFECT


class Mirrored(Protocol):
    """A run in another tracker."""

    def points(self, points: Sequence[Point]) -> None:
        """Add numbers, which are in the order of their steps."""

    def pictures(self, paths: Sequence[Path]) -> None:
        """Add PNG files."""

    def close(self, record: RunRecord) -> None:
        """Write no more of a run, which may still be running."""


class Mirror(Protocol):
    """Another tracker."""

    def has_whole(self, record: RunRecord) -> bool:
        """Whether all of a run is there as it ended."""

    def open(self, record: RunRecord) -> Mirrored:
        """Begin a run, or begin it anew."""


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
    following = _Following(to, uri)
    records = _chosen(uri, experiment, run_ids)
    try:
        counts = following.round(records)
        while every:
            time.sleep(every)
            records = _chosen(uri, experiment, run_ids)
            following.round(records)
    finally:
        following.close(records)
    return counts


def _chosen(uri: str, experiment: str, run_ids: Sequence[str]) -> list[RunRecord]:
    """Return the runs, earliest first, without those that logged nothing and the plans of sweeps."""
    records = {record.run_id: record for record in reversed(find_runs(uri, experiment, finished=False))}
    for run_id in run_ids:
        if run_id not in records:
            raise InputError(
                f"no run {run_id!r} in experiment {experiment!r}: `polypool runs --experiment {experiment}` "
                "lists those it has, and --experiment names another"
            )
    wanted = [records[run_id] for run_id in run_ids] if run_ids else records.values()
    return [record for record in wanted if record.metrics and record.tags.get("kind") != "sweep"]


class _Following:
    """Runs on their way to a mirror."""

    def __init__(self, to: Mirror, uri: str) -> None:
        self._mirror, self._uri = to, uri
        self._open: dict[str, tuple[Mirrored, Counter[str]]] = {}

    def round(self, records: Iterable[RunRecord]) -> tuple[int, int]:
        """Mirror what is new of some runs; return how many had something new, and how many are still running."""
        new = running = 0
        for record in records:
            running += record.status == "RUNNING"
            if record.run_id not in self._open and self._mirror.has_whole(record):
                continue
            new += self._send(record)
            if record.status != "RUNNING":
                self._end(record)
        return new, running

    def close(self, records: Iterable[RunRecord]) -> None:
        """Leave the running ones as they are now."""
        for record in records:
            if record.run_id in self._open:
                self._open.pop(record.run_id)[0].close(record)

    def _send(self, record: RunRecord) -> bool:
        """Send the numbers of a run that its mirror lacks; return whether there were any."""
        if record.run_id not in self._open:
            self._open[record.run_id] = self._mirror.open(record), Counter()
        mirrored, sent = self._open[record.run_id]
        tracker = Tracker.attach(self._uri, record.run_id, running=False)
        points = [point for name in sorted(record.metrics) for point in tracker.points_of(name)[sent[name] :]]
        sent.update(name for name, *_ in points)
        if points:
            mirrored.points(sorted(points, key=lambda point: point[3]))
        return bool(points)

    def _end(self, record: RunRecord) -> None:
        from polypool.pipelines.training.recording.artifacts import PICTURES  # imports torch

        mirrored, _ = self._open.pop(record.run_id)
        with suppress(InputError):  # it drew none
            folder = Tracker.attach(self._uri, record.run_id, running=False).download(PICTURES)
            mirrored.pictures(sorted(folder.glob("*.png")))
        mirrored.close(record)


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
