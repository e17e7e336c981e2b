"""Journal of a run: what it logs, in a folder until MLflow has it.

The process that trains only appends to a file, without waiting and without MLflow. The same process or another sends
the entries on (`infra.tracking.outbox`), also after the first one has ended.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from polypool.infra.errors import InputError
from polypool.infra.fields import from_plain
from polypool.infra.files import atomic, make_folder
from polypool.infra.tracking.tracker import Point, Status, Tracker

JOURNAL, FILES = "journal.jsonl", "files"
"""In the folder: the entries, and the files that they name."""
MEMBERS, DESCRIBED = "members", "described.json"
"""Also there: journals of member runs, and in each the data that starts it."""

Kind = Literal["begin", "numbers", "tags", "artifact", "end"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A line of the journal.

    Attributes:
        kind: `begin` is the first entry of a new run.
        time: milliseconds since 1970.
        step: of numbers.
        values: numbers as text, as JSON has no NaN; or tags.
        folder: of artifacts.
        names: of files in the folder.
        status: at the end of the run.
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
        """The numbers as `Tracker.points` takes them; ValueError if one is no number."""
        return [(name, float(text), self.time, self.step) for name, text in self.values.items()]


class Journal:
    """The log of one run, written by one process at a time, with the methods of `Tracker` that training calls.

    Args:
        folder: of this run alone; created if new.
        earlier: returns the run, which has what was logged before there was this folder; called only if needed.
    """

    def __init__(self, folder: Path, earlier: Callable[[], Tracker]) -> None:
        self.folder, self._earlier = make_folder(folder), earlier
        self._journal, self._gave_up = (folder / JOURNAL).open("ab", buffering=0), False

    def begin(self) -> None:
        self._add("begin")

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        self._add("numbers", step=step, values={name: repr(float(x)) for name, x in metrics.items()})

    def tags(self, tags: Mapping[str, str]) -> None:
        self._add("tags", values={name: str(value) for name, value in tags.items()})

    def artifact(self, path: Path, folder: str = "") -> None:
        """Store a copy of a file, or of the files in a folder; it replaces one of the same name."""
        files, into = files_at(path), make_folder(self.folder / FILES / folder)
        for file in files:
            shutil.copyfile(file, into / f".{file.name}.part")
            (into / f".{file.name}.part").replace(into / file.name)
        self._add("artifact", folder=folder, names=tuple(file.name for file in files))

    def member(self, name: str, described: Mapping[str, Any]) -> Journal:
        """Return the journal of a member of this run, such as one of several tasks, which is a run of its own.

        Args:
            name: of the member.
            described: plain data from which the sending process starts the run.
        """
        journal = Journal(self.folder / MEMBERS / name, self._earlier)
        with atomic(journal.folder / DESCRIBED) as file:
            file.write(json.dumps(described).encode())
        return journal

    def end(self, status: Status) -> None:
        self._add("end", status=status)

    def download(self, artifact_path: str) -> Path:
        """Return the path of an artifact: here, or from an earlier process.

        Raises:
            InputError: it is not here, and MLflow does not answer or has none.
        """
        kept = self.folder / FILES / artifact_path
        return kept if kept.exists() else self._earlier().download(artifact_path)

    def history(self, name: str) -> list[tuple[int, float]]:
        """Return step and value of a metric in order.

        Values from before there was this folder are included if MLflow answers; it is tried once.
        """
        points, whole = {}, False
        for entry, _ in self.entries():
            whole = whole or (entry is not None and entry.kind == "begin")
            if entry is not None and entry.kind == "numbers" and name in entry.values:
                points[entry.step] = float(entry.values[name])
        if not whole and not self._gave_up:
            try:
                points = dict(self._earlier().history(name)) | points
            except InputError:
                self._gave_up = True
        return sorted(points.items())

    def has_tag(self, name: str) -> bool:
        """Whether the tag `name` was set here."""
        return any(e is not None and e.kind == "tags" and name in e.values for e, _ in self.entries())

    def entries(self, start: int = 0) -> Iterator[tuple[Entry | None, int]]:
        """Yield the entries from a byte of the journal on, and the byte at their end; None for an invalid line."""
        with (self.folder / JOURNAL).open("rb") as journal:
            journal.seek(start)
            for line in journal:
                if not line.endswith(b"\n"):
                    return
                start += len(line)
                yield _entry(line), start

    def close(self) -> None:
        self._journal.close()

    def _add(self, kind: Kind, **values: Any) -> None:
        entry = Entry(kind=kind, time=int(time.time() * 1000), **values)
        line = json.dumps(asdict(entry)).encode() + b"\n"
        # a process may have been killed within a line
        rest = line if self._ends_whole() else b"\n" + line
        while rest:  # a full disk takes a part, and raises on the next write
            rest = rest[self._journal.write(rest) :]

    def _ends_whole(self) -> bool:
        with (self.folder / JOURNAL).open("rb") as journal:
            if not journal.seek(0, 2):
                return True
            journal.seek(-1, 2)
            return journal.read() == b"\n"


def files_at(path: Path) -> list[Path]:
    """Return a file, or the files in a folder by name, without those of its folders."""
    return [path] if path.is_file() else [file for file in sorted(path.iterdir()) if file.is_file()]


def _entry(line: bytes) -> Entry | None:
    """Return the entry in a line of the journal; None if it is invalid or names files outside the folder."""
    try:
        entry = from_plain(Entry, json.loads(line))
        _ = entry.points if entry.kind == "numbers" else ()
    except (ValueError, RecursionError):
        return None
    paths = (Path(entry.folder, name) for name in entry.names)
    inside = not any(path.is_absolute() or ".." in path.parts for path in paths)
    return entry if inside else None
