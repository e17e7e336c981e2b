"""What a run logs, kept in a folder until MLflow has it.

Training waits for nobody: numbers and files go to the folder, and a thread sends them on, in order. While the server
does not answer it is asked again and again; what it has not taken when the process ends stays where it is, for the
next one that opens the folder. The queue is a file, so it takes no memory and outlives its process. What MLflow
refuses for good, such as an impossible name, is put aside, with the reason, and holds nothing up.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from infra.errors import InputError
from infra.fields import from_plain
from infra.files import atomic, make_folder
from infra.tracking.tracker import Point, Status, Tracker

JOURNAL, SENT, REFUSED, FILES = "journal.jsonl", "sent", "refused.jsonl", "files"
"""In the folder: the entries, how many bytes of them MLflow has, those it refused, and the files they name."""
CLOSE_SECONDS = 120.0
_PAUSES = (1.0, 30.0)  # seconds between two attempts, the first ones and at most
_BATCH = 1000  # numbers that MLflow takes at once
_FOR_GOOD = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A line of the journal, one of these kinds.

    Attributes:
        kind: what the others mean.
        time: milliseconds since 1970.
        step: of the numbers.
        values: numbers as text, since JSON has no NaN; or tags.
        folder: of artifacts.
        names: of files in it.
        status: how the run ended.
    """

    kind: Literal["numbers", "tags", "artifact", "end"]
    time: int
    step: int = 0
    values: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    names: tuple[str, ...] = ()
    status: Status = "RUNNING"


class Outbox:
    """The log of one run, of one process at a time; takes the calls of `Tracker` that training makes.

    Args:
        folder: where it is kept, of the run alone; made where it is not there.
        connect: attaches to the run, in the thread that sends.
    """

    def __init__(self, folder: Path, connect: Callable[[], Tracker]) -> None:
        self.folder, self._connect = make_folder(folder), connect
        self._journal = (folder / JOURNAL).open("ab")
        self._sent = self._position()
        self._written, self._latest = 0, {}
        for entry, end in self._entries(0):
            self._note(entry, end)
        if self._journal.tell() > self._written:  # its process ended in the middle of a line
            self._written = self._journal.tell() + self._journal.write(b"\n")
            self._journal.flush()
        self._sent = min(self._sent, self._written)
        self._changed, self._closing, self.why = threading.Condition(), False, ""
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Log numbers of one step."""
        self._add("numbers", step=step, values={name: repr(float(x)) for name, x in metrics.items()})

    def tags(self, tags: Mapping[str, str]) -> None:
        """Set tags."""
        self._add("tags", values={name: str(value) for name, value in tags.items()})

    def artifact(self, path: Path, folder: str = "") -> None:
        """Keep a copy of a file, or of the files in a folder; it takes the place of one of the same name."""
        files = [path] if path.is_file() else [file for file in sorted(path.iterdir()) if file.is_file()]
        into = make_folder(self.folder / FILES / folder)
        for file in files:
            shutil.copyfile(file, into / f".{file.name}.part")
            (into / f".{file.name}.part").replace(into / file.name)
        self._add("artifact", folder=folder, names=tuple(file.name for file in files))

    def end(self, status: Status) -> None:
        """End the run."""
        self._add("end", status=status)

    def download(self, artifact_path: str) -> Path:
        """Return where an artifact is: here, or where an earlier process left it.

        Raises:
            InputError: it is not here, and MLflow does not answer or has none.
        """
        kept = self.folder / FILES / artifact_path
        return kept if kept.exists() else self._connect().download(artifact_path)

    def history(self, name: str) -> list[tuple[int, float]]:
        """Return every value of a metric with its step, in order, also what was logged before there was this folder."""
        points = {}
        if not self.why:
            with suppress(InputError):
                points = dict(self._connect().history(name))
        for entry, _ in self._entries(0):
            if entry is not None and entry.kind == "numbers" and name in entry.values:
                points[entry.step] = float(entry.values[name])
        return sorted(points.items())

    @property
    def unsent(self) -> int:
        """How many entries MLflow has not got."""
        return sum(1 for _ in self._entries(self._sent))

    @property
    def refused(self) -> int:
        """How many entries MLflow refused for good."""
        path = self.folder / REFUSED
        return len(path.read_bytes().splitlines()) if path.is_file() else 0

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Send what is left, unless the server does not answer or it takes longer than so many seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(seconds)
        self._journal.close()

    def _add(self, kind: Literal["numbers", "tags", "artifact", "end"], **values: object) -> None:
        entry = Entry(kind=kind, time=int(time.time() * 1000), **values)
        with self._changed:
            self._journal.write(json.dumps(asdict(entry)).encode() + b"\n")
            self._journal.flush()
            self._note(entry, self._journal.tell())
            self._changed.notify()

    def _note(self, entry: Entry | None, end: int) -> None:
        self._written = end
        if entry is not None and entry.kind == "artifact":
            self._latest |= {(entry.folder, name): end for name in entry.names}

    def _position(self) -> int:
        """Return how many bytes of the journal MLflow has; all is sent again where that cannot be read."""
        path = self.folder / SENT
        try:
            position = int(path.read_bytes()) if path.is_file() else 0
        except ValueError:
            return 0
        return max(0, min(position, (self.folder / JOURNAL).stat().st_size))

    def _entries(self, start: int) -> Iterator[tuple[Entry | None, int]]:
        """Yield the entries from a byte of the journal on, and where each ends; None for a line that is none."""
        with (self.folder / JOURNAL).open("rb") as journal:
            journal.seek(start)
            for line in journal:
                if not line.endswith(b"\n"):
                    return
                start += len(line)
                yield _entry(line), start

    def _run(self) -> None:
        """Send, until closed and all is sent, or closed and nobody answers."""
        tracker, pause = None, _PAUSES[0]
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._sent < self._written)
                closing = self._closing
                if self._sent >= self._written:
                    return
            try:
                tracker = tracker or self._connect()
                self._send(tracker)
                self.why, pause = "", _PAUSES[0]
            except Exception as error:  # whatever it is, training goes on
                tracker, self.why = None, str(error)
                if closing:
                    return
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, timeout=pause)
                pause = min(2 * pause, _PAUSES[1])

    def _send(self, tracker: Tracker) -> None:
        """Send the next entry, or the numbers of the next steps together."""
        numbers: list[tuple[Entry, int]] = []
        for entry, end in self._entries(self._sent):
            if entry is None or entry.kind != "numbers":
                if not numbers:
                    self._send_one(tracker, entry, end)
                break
            numbers.append((entry, end))
            if sum(len(each.values) for each, _ in numbers) > _BATCH // 2:
                break
        if not numbers:
            return
        try:
            tracker.points([point for entry, _ in numbers for point in _points(entry)])
            self._got(numbers[-1][1])
        except InputError as error:
            if not _for_good(error):
                raise
            for entry, end in numbers:
                self._send_one(tracker, entry, end)

    def _send_one(self, tracker: Tracker, entry: Entry | None, end: int) -> None:
        why = "this line cannot be read" if entry is None else ""
        try:
            if entry is not None:
                self._to(tracker, entry, end)
        except InputError as error:
            if not _for_good(error):
                raise
            why = str(error)
        if why:
            refused = {"why": why, "entry": None if entry is None else asdict(entry)}
            with (self.folder / REFUSED).open("a") as file:
                file.write(json.dumps(refused) + "\n")
        self._got(end)

    def _to(self, tracker: Tracker, entry: Entry, end: int) -> None:
        if entry.kind == "numbers":
            tracker.points(_points(entry))
        elif entry.kind == "tags":
            tracker.tags(entry.values)
        elif entry.kind == "end":
            tracker.finish(entry.status, at=entry.time)
        else:
            for name in entry.names:
                if self._latest.get((entry.folder, name), end) == end:  # no later one takes its place
                    tracker.artifact(self.folder / FILES / entry.folder / name, entry.folder)

    def _got(self, end: int) -> None:
        """Note that MLflow has all up to a byte of the journal."""
        self._sent = end
        with atomic(self.folder / SENT) as file:
            file.write(str(end).encode())


def _entry(line: bytes) -> Entry | None:
    """Return what a line of the journal says; None where it says nothing that can be sent."""
    try:
        entry = from_plain(Entry, json.loads(line))
        _points(entry) if entry.kind == "numbers" else ()
    except (ValueError, RecursionError):
        return None
    paths = (Path(entry.folder, name) for name in entry.names)
    inside = not any(path.is_absolute() or ".." in path.parts for path in paths)
    return entry if inside else None


def _points(entry: Entry) -> list[Point]:
    return [(name, float(text), entry.time, entry.step) for name, text in entry.values.items()]


def _for_good(error: InputError) -> bool:
    """Whether MLflow answered, and would say the same again."""
    return getattr(error.__cause__, "error_code", "") in _FOR_GOOD
