"""What another tracker has to take of a run, and how runs go there: read from MLflow, each number once.

Nothing of this is in a run's own process, which knows of no mirror and waits for none: any run can be mirrored, one
that goes on as well as one of last year, from any machine that MLflow can be reached from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from infra.errors import InputError
from infra.tracking import RunRecord, Tracker
from infra.tracking.tracker import Point
from tasks.run import WITHOUT_EFFECT


class Mirrored(Protocol):
    """A run in another tracker."""

    def points(self, points: Sequence[Point]) -> None:
        """Take numbers, in the order of their steps."""

    def pictures(self, paths: Sequence[Path]) -> None:
        """Take PNG files."""

    def close(self, record: RunRecord) -> None:
        """Write no more; the record says how far the run is, which may go on."""


class Mirror(Protocol):
    """Another tracker."""

    def has_whole(self, record: RunRecord) -> bool:
        """Whether it has all of a run as that ended."""

    def open(self, record: RunRecord) -> Mirrored:
        """Begin a run, or begin it anew."""


class Following:
    """Runs on their way to a mirror.

    Args:
        mirror: where they go.
        uri: MLflow's store.
    """

    def __init__(self, mirror: Mirror, uri: str) -> None:
        self._mirror, self._uri = mirror, uri
        self._open: dict[str, tuple[Mirrored, Counter[str]]] = {}

    def round(self, records: Iterable[RunRecord]) -> tuple[int, int]:
        """Mirror what is new of some runs; return how many had something new, and how many still go on."""
        new = going_on = 0
        for record in records:
            running = record.status == "RUNNING"
            going_on += running
            if record.run_id not in self._open and self._mirror.has_whole(record):
                continue
            new += self._send(record)
            if not running:
                self._end(record)
        return new, going_on

    def close(self, records: Iterable[RunRecord]) -> None:
        """Leave the runs that go on as they are now."""
        for record in records:
            if record.run_id in self._open:
                self._open.pop(record.run_id)[0].close(record)

    def _send(self, record: RunRecord) -> bool:
        """Send the numbers of a run that its mirror has not; return whether there were any."""
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
        from pipelines.training.recording.artifacts import (
            PICTURES,
        )  # torch, which no other part of this needs

        mirrored, _ = self._open.pop(record.run_id)
        with suppress(InputError):  # it drew none
            folder = Tracker.attach(self._uri, record.run_id, running=False).download(PICTURES)
            mirrored.pictures(sorted(folder.glob("*.png")))
        mirrored.close(record)


def settings(record: RunRecord) -> dict[str, float | str]:
    """Return what a run was told that its result depends on, as numbers where it is numbers, without what is empty."""
    told = {
        name: text for name, text in record.params.items() if name.partition(".")[0] not in WITHOUT_EFFECT
    }
    return {name: _number(text) for name, text in told.items() if text not in ("", "[]", "{}")}


def results(record: RunRecord) -> dict[str, float]:
    """Return what a run reached on the test split, by its own protocol and by what all tasks share."""
    of = ("test/", f"{record.tags.get('protocol', 'test')}/")
    return {name: value for name, value in record.metrics.items() if name.startswith(of)}


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
