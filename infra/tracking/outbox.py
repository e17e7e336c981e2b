"""Outbox of a run: sends the entries of its journal to MLflow.

A thread sends them in order and retries while the server does not answer; entries that are left when the process ends
stay in the folder for the next process that opens it. Numbers of steps that are trained again after a fault are sent
once. Entries that MLflow refuses for good, such as an impossible name, are written to a file with the reason; those of
a deleted run wait until it is restored.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from polypool.infra.errors import InputError
from polypool.infra.files import atomic
from polypool.infra.tracking.journal import FILES, JOURNAL, Entry, Journal, Kind
from polypool.infra.tracking.tracker import Point, Tracker

SENT, REFUSED = "sent", "refused.jsonl"
"""In the journal's folder: how many of its bytes were sent, and the entries that MLflow refused."""
CLOSE_SECONDS = 120.0
_LOOK = 0.3  # seconds between two checks for what another process has written
_PAUSES = (1.0, 30.0)  # seconds between two attempts, at first and at most
_BATCH = 1000  # numbers that MLflow takes at once
_FOR_GOOD = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")


class Outbox(Journal):
    """A journal whose entries are sent, also those that another process writes.

    Args:
        folder: of the journal; one process at a time sends from it.
        connect: attaches to the run, in the thread that sends.
    """

    def __init__(self, folder: Path, connect: Callable[[], Tracker]) -> None:
        super().__init__(folder, connect)
        self._connect = connect
        self._sent, self._read, self._latest = self._position(), 0, {}
        sent = [entry for entry, end in self.entries() if end <= self._sent and entry is not None]
        self._logged = set(_points([entry for entry in sent if entry.kind == "numbers"]))
        self._began_here, self._learned = False, set[str]()
        self._changed, self._closing, self.why = threading.Condition(), False, ""
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    @property
    def unsent(self) -> int:
        """The number of entries that were not sent."""
        return sum(1 for _ in self.entries(self._sent))

    @property
    def refused(self) -> int:
        """The number of entries that MLflow refused for good."""
        path = self.folder / REFUSED
        return len(path.read_bytes().splitlines()) if path.is_file() else 0

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Send what is left, unless the server does not answer or it takes longer than `seconds`."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(seconds)
        super().close()

    def _add(self, kind: Kind, **values: Any) -> None:
        with self._changed:
            super()._add(kind, **values)
            self._changed.notify()

    def _position(self) -> int:
        """Return how many bytes of the journal were sent; 0 if that cannot be read, so that all is sent again."""
        path = self.folder / SENT
        try:
            position = int(path.read_bytes()) if path.is_file() else 0
        except ValueError:
            return 0
        return max(0, min(position, (self.folder / JOURNAL).stat().st_size))

    def _read_on(self) -> bool:
        """Read new entries, noting which files they replace; return whether anything is left to send."""
        for entry, end in self.entries(self._read):
            self._read = end
            self._began_here |= entry is not None and entry.kind == "begin"
            if entry is not None and entry.kind == "artifact":
                self._latest |= {(entry.folder, name): end for name in entry.names}
        return self._sent < self._read

    def _run(self) -> None:
        """Send until closed and all is sent, or closed and the server does not answer."""
        tracker, pause = None, _PAUSES[0]
        while True:
            with self._changed:
                while not (left := self._read_on()) and not self._closing:
                    self._changed.wait(_LOOK)
                closing = self._closing
            if not left:
                return
            try:
                tracker = tracker or self._connect()
                self._send(tracker)
                self.why, pause = "", _PAUSES[0]
            except Exception as error:  # training goes on whatever it is
                tracker, self.why = None, str(error)
                if closing:
                    return
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, timeout=pause)
                pause = min(2 * pause, _PAUSES[1])

    def _send(self, tracker: Tracker) -> None:
        """Send the next entry, or the numbers of the next steps together."""
        batch: list[tuple[Entry | None, int]] = []
        count = 0
        for entry, end in self.entries(self._sent):
            numbers = entry is not None and entry.kind == "numbers"
            if batch and not numbers:
                break
            batch.append((entry, end))
            count += len(entry.values) if entry is not None else 0
            if not numbers or count > _BATCH // 2:
                break
        if batch:
            self._deliver(tracker, batch)

    def _deliver(self, tracker: Tracker, batch: Sequence[tuple[Entry | None, int]]) -> None:
        """Send one entry, or numbers; what MLflow refuses for good is written to a file."""
        (entry, end), why = batch[0], ""
        try:
            if entry is None:
                why = "this line cannot be read"
            elif entry.kind == "numbers":
                self._send_numbers(tracker, [each for each, _ in batch if each is not None])
            elif entry.kind == "tags":
                tracker.tags(entry.values)
            elif entry.kind == "end":
                tracker.finish(entry.status, at=entry.time)
            else:
                for name in entry.names:
                    if self._latest.get((entry.folder, name), end) == end:  # no later one takes its place
                        tracker.artifact(self.folder / FILES / entry.folder / name, entry.folder)
        except InputError as error:
            if not _for_good(error):
                raise
            tracker.refuse_deleted()  # a deleted run may be restored
            if len(batch) > 1:
                for each in batch:
                    self._deliver(tracker, [each])
                return
            why = str(error)
        if why:
            refused: dict[str, Any] = {"why": why, "entry": None if entry is None else asdict(entry)}
            with (self.folder / REFUSED).open("a") as file:
                file.write(json.dumps(refused) + "\n")
        self._sent = batch[-1][1]
        with atomic(self.folder / SENT) as file:
            file.write(str(self._sent).encode())

    def _send_numbers(self, tracker: Tracker, entries: Sequence[Entry]) -> None:
        points = _points(entries)
        if not self._began_here:
            self._learn(tracker, {name for name, _ in points})
        if new := [point for key, point in points.items() if key not in self._logged]:
            tracker.points(new)
        self._logged |= points.keys()

    def _learn(self, tracker: Tracker, names: set[str]) -> None:
        """Note which numbers another machine has sent, as their steps may be trained again here."""
        for name in sorted(names - self._learned):
            self._logged |= {(name, step) for step, _ in tracker.history(name)}
            self._learned.add(name)


def _points(entries: Iterable[Entry]) -> dict[tuple[str, int], Point]:
    """Return numbers by their names and steps."""
    return {(name, step): (name, x, at, step) for entry in entries for name, x, at, step in entry.points}


def _for_good(error: InputError) -> bool:
    """Whether MLflow answered, and a retry would fail the same way."""
    return getattr(error.__cause__, "error_code", "") in _FOR_GOOD
