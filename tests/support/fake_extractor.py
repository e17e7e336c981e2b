"""A fake extractor that reports its calls, sleeps, fails or crashes, and helpers for tests of `extract`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from unittest.mock import patch

import pytest

from polypool.infra.errors import InputError
from polypool.pipelines.data import extraction
from polypool.pipelines.data.extraction import Batch, Row
from polypool.tasks.datasets.corpus import Item, write_corpus


class FakeExtractor:
    """Returns the batch, process and time of each id.

    The id selects the behaviour: `slow...` sleeps for a second, `bad...` raises an error, and `deadly...` ends the
    process the first `lives` times, counted in the file `folder/ID`.
    """

    def __init__(self, *, folder: str = "", lives: int = 0, threads: int = 1) -> None:
        if lives < 0:
            raise InputError("there is no such backbone")
        self._folder, self._lives = Path(folder), lives

    def __call__(self, batch: Batch) -> list[Row]:
        return [self._row(id, batch) for id in batch["ids"]]

    def _row(self, id: str, batch: Batch) -> Row:
        if id.startswith("slow"):
            time.sleep(1)
        if id.startswith("bad"):
            raise InputError(f"{id} is bad")
        if id.startswith("deadly") and len(deaths := _read(self._folder / id)) < self._lives:
            (self._folder / id).write_text(f"{deaths}x")
            os._exit(1)
        return {"id": id, "together": batch["ids"], "process": os.getpid(), "at": time.monotonic()}


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@contextmanager
def interrupted(*, after: int) -> Iterator[None]:
    """Interrupt `extract` after this many rows."""
    stream = extraction.stream

    def rows(batches, **options):
        yield from islice(stream(batches, **options), after)
        raise KeyboardInterrupt

    with patch.object(extraction, "stream", rows), pytest.raises(KeyboardInterrupt):
        yield


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files below a folder, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def corpus_of_files(folder: Path, files: Path, names: list[str]) -> Path:
    """Write a corpus of files, every fourth one in the test split; return its folder."""
    splits = ("train", "train", "train", "test")
    items = [
        Item(id=Path(name).stem, split=splits[at % 4], captions=("a",), path=name)
        for at, name in enumerate(names)
    ]
    write_corpus(folder, items, source={"made": "by a test"}, images=files)
    return folder


def in_this_process(monkeypatch, *, threads: int = 1) -> list[str]:
    """Run `extract`'s workers in this process, without Ray; return the list of ids that they receive."""
    sent: list[str] = []

    def stream(batches, *, extractor, options, **_):
        worker = extractor(**options, threads=threads)
        for batch in batches:
            sent.extend(batch["ids"])
            yield from worker(batch)
        getattr(worker, "close", lambda: None)()

    monkeypatch.setattr(extraction, "stream", stream)
    monkeypatch.setattr(extraction, "ray_session", nullcontext)
    return sent
