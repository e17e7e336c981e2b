"""The outbox of a run: what MLflow has not received, read back by the next process."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from fuzz.cases import Kind, expect
from polypool.infra.tracking.journal import FILES, JOURNAL, Entry
from polypool.infra.tracking.outbox import SENT, Outbox
from polypool.infra.tracking.tracker import Point, Status

_ENTRIES = [
    Entry(kind="begin", time=0),
    Entry(kind="tags", time=1, values={"kind": "train"}),
    *(
        Entry(kind="numbers", time=2 + i, step=i, values={"loss": repr(1 / (1 + i)), "x": "nan"})
        for i in range(4)
    ),
    Entry(kind="artifact", time=9, folder="figures", names=("a.txt", "b.txt")),
    Entry(kind="end", time=10, status="FINISHED"),
]


class _Recorder:
    """Takes what MLflow would."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()

    def history(self, name: str) -> list[tuple[int, float]]:
        return []

    def points(self, points: list[Point]) -> None:
        for name, value, time, step in points:
            whole = isinstance(time, int) and isinstance(step, int)
            expect(isinstance(name, str) and isinstance(value, float) and whole, f"the number {name}")

    def tags(self, tags: dict[str, str]) -> None:
        expect(all(isinstance(part, str) for pair in tags.items() for part in pair), f"the tags {tags}")

    def artifact(self, path: Path, folder: str = "") -> None:
        expect(path.resolve().is_relative_to(self._folder), f"{path} is no file of the run")

    def finish(self, status: Status, *, at: int) -> None:
        expect(isinstance(at, int), f"the time {at}")


def _make(folder: Path) -> None:
    outbox = folder / "outbox"
    (outbox / FILES / "figures").mkdir(parents=True)
    for name in ("a.txt", "b.txt"):
        (outbox / FILES / "figures" / name).write_text(name)
    lines = [json.dumps(asdict(entry)) for entry in _ENTRIES]
    (outbox / JOURNAL).write_text("\n".join(lines) + "\n")
    (outbox / SENT).write_text(str(len(lines[0]) + 1))


def _read(folder: Path) -> int:
    """Send what is left; nothing that is damaged holds up the rest."""
    outbox = Outbox(folder / "outbox", lambda: _Recorder(folder))
    outbox.history("loss")
    outbox.close(seconds=5)
    expect(not outbox.unsent, f"{outbox.unsent} entries are held up: {outbox.why}")
    return outbox.refused


KINDS = [
    Kind(
        name="outbox",
        make=_make,
        read=_read,
        damaged={f"outbox/{JOURNAL}": "jsonl", f"outbox/{SENT}": "lines"},
    )
]
