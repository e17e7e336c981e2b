"""Who is behind a run: whoever holds its folder, or its checkpoints in object storage."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from infra.errors import InputError
from infra.process.lease import NAME, Holder, holder_of
from infra.tracking import RunRecord
from pipelines.training.folder import AT, checkpoints_at, run_folder

Behind = Literal["", "alive", "nobody", "unknown"]
"""Who is behind a run: somebody, nobody, or who knows, as its folder or storage is not here; empty where it ended."""


def behind(record: RunRecord, *, home: Path) -> tuple[Behind, Holder | None]:
    """Return whether anybody is behind a run, and who, where that is known.

    Args:
        record: of the run.
        home: of the project, where runs have their folders.
    """
    holder, known = _holder(record, home=home)
    if holder is not None:
        return "alive", holder
    if record.status != "RUNNING":
        return "", None
    return ("nobody" if known else "unknown"), None


def _holder(record: RunRecord, *, home: Path) -> tuple[Holder | None, bool]:
    """Return who holds a run, and whether that can be known here."""
    folder = run_folder(home, record.run_id)
    if (holder := holder_of(folder / NAME)) is not None:
        return holder, True
    at = checkpoints_at(record.run_id, record.tags.get(AT, ""))
    if at is None or record.status != "RUNNING":
        return None, folder.is_dir()
    from infra.storage.claim import holder_at

    try:
        return holder_at(at), True
    except InputError:  # the storage does not answer, or refuses
        return None, False
