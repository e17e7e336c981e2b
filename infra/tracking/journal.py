"""What a run logs, kept in a folder until MLflow has it.

The process that trains writes, and waits for nobody: it knows nothing of MLflow. Another process, or a later one, sends
what is there on (`infra.tracking.outbox`). The queue is a file, so it takes no memory and outlives its process.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from infra.errors import InputError
from infra.fields import from_plain
from infra.files import atomic, make_folder
from infra.tracking.tracker import Point, Status

JOURNAL, FILES = "journal.jsonl", "files"
"""In the folder: the entries, and the files that they name."""
MEMBERS, DESCRIBED = "members", "described.json"
"""Likewise: journals of runs that come with this one, and in each what it is started by."""

Kind = Literal["begin", "numbers", "tags", "artifact", "end"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A line of the journal, one of these kinds.

    Attributes:
        kind: what the others mean; `begin` is the first of a run, before which it logged nothing.
        time: milliseconds since 1970.
        step: of the numbers.
        values: numbers as text, since JSON has no NaN; or tags.
        folder: of artifacts.
        names: of files in it.
        status: how the run ended.
    """

    kind: Kind
    time: int
    step: int = 0
    values: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    names: tuple[str, ...] = ()
    status: Status = "RUNNING"

    @property
    def points(self) -> list[Point]:
        """The numbers, as `Tracker.points` takes them.

        Raises:
            ValueError: one of them is none.
        """
        return [(name, float(text), self.time, self.step) for name, text in self.values.items()]


class Logged(Protocol):
    """What an earlier process of a run logged, as `Tracker` has it."""

    def download(self, artifact_path: str) -> Path:
        """Return where an artifact is."""

    def history(self, name: str) -> Sequence[tuple[int, float]]:
        """Return every value of a metric with its step."""


class Journal:
    """The log of one run, which one process at a time writes; takes the calls of `Tracker` that training makes.

    Args:
        folder: where it is kept, of the run alone; made where it is not there.
        earlier: gives what was logged before there was this folder, where somebody asks for it.
    """

    def __init__(self, folder: Path, earlier: Callable[[], Logged]) -> None:
        self.folder, self._earlier = make_folder(folder), earlier
        self._journal, self._unanswered = (folder / JOURNAL).open("ab", buffering=0), False

    def begin(self) -> None:
        """Begin a new run."""
        self._add("begin")

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

    def member(self, name: str, described: Mapping[str, Any]) -> Journal:
        """Return the log of a run of its own that comes with this one, such as of one of several tasks.

        Args:
            name: what it is called among those of this run.
            described: plain data that the process which sends it on starts it by.
        """
        journal = Journal(self.folder / MEMBERS / name, self._earlier)
        with atomic(journal.folder / DESCRIBED) as file:
            file.write(json.dumps(described).encode())
        return journal

    def end(self, status: Status) -> None:
        """End the run."""
        self._add("end", status=status)

    def download(self, artifact_path: str) -> Path:
        """Return where an artifact is: here, or where an earlier process left it.

        Raises:
            InputError: it is not here, and MLflow does not answer or has none.
        """
        kept = self.folder / FILES / artifact_path
        return kept if kept.exists() else self._earlier().download(artifact_path)

    def history(self, name: str) -> list[tuple[int, float]]:
        """Return every value of a metric with its step, in order.

        What was logged before there was this folder is among them, where MLflow answers; who waited for it in vain asks
        no more.
        """
        points, whole = {}, False
        for entry, _ in self.entries():
            whole = whole or (entry is not None and entry.kind == "begin")
            if entry is not None and entry.kind == "numbers" and name in entry.values:
                points[entry.step] = float(entry.values[name])
        if not whole and not self._unanswered:
            try:
                points = dict(self._earlier().history(name)) | points
            except InputError:
                self._unanswered = True
        return sorted(points.items())

    def entries(self, start: int = 0) -> Iterator[tuple[Entry | None, int]]:
        """Yield the entries from a byte of the journal on, and where each ends; None for a line that is none."""
        with (self.folder / JOURNAL).open("rb") as journal:
            journal.seek(start)
            for line in journal:
                if not line.endswith(b"\n"):
                    return
                start += len(line)
                yield _entry(line), start

    def close(self) -> None:
        """Write no more."""
        self._journal.close()

    def _add(self, kind: Kind, **values: object) -> None:
        entry = Entry(kind=kind, time=int(time.time() * 1000), **values)
        line = json.dumps(asdict(entry)).encode() + b"\n"
        # a process may have ended in the middle of a line
        rest = line if self._ends_whole() else b"\n" + line
        while rest:  # a disk that is full takes a part, and refuses what follows
            rest = rest[self._journal.write(rest) :]

    def _ends_whole(self) -> bool:
        with (self.folder / JOURNAL).open("rb") as journal:
            if not journal.seek(0, 2):
                return True
            journal.seek(-1, 2)
            return journal.read() == b"\n"


def _entry(line: bytes) -> Entry | None:
    """Return what a line of the journal says; None where it says nothing that can be sent."""
    try:
        entry = from_plain(Entry, json.loads(line))
        _ = entry.points if entry.kind == "numbers" else ()
    except (ValueError, RecursionError):
        return None
    paths = (Path(entry.folder, name) for name in entry.names)
    inside = not any(path.is_absolute() or ".." in path.parts for path in paths)
    return entry if inside else None
