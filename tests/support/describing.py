"""Extractors of no features, for workers of Ray: each says what it was called with, waits, fails or dies."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from infra.errors import InputError
from pipelines.extraction.workers import Batch, Row


class Noting:
    """Says of each id which batch it came in, by which process it was described, and when.

    Ids say what happens: `slow...` takes a second, `bad...` is an error, and `deadly...` ends the process, until the
    file `folder/ID` has as many letters as `lives`.
    """

    def __init__(
        self,
        *,
        one_by_one: bool = False,
        folder: str = "",
        lives: int = 0,
        threads: int = 1,
        trusting: Any = (),
    ) -> None:
        if lives < 0:
            raise InputError("there is no such backbone")
        self.one_by_one, self._folder, self._lives = one_by_one, Path(folder), lives

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
