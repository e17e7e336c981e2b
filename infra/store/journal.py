"""What an unfinished feature store is, so that the next writer knows whether it may go on with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from infra.errors import InputError
from infra.fields import read_record
from infra.files import write_json
from infra.store.findings import Flagged
from infra.store.manifest import NAME as MANIFEST
from infra.store.manifest import Shard

NAME = "writing.json"


@dataclass(frozen=True, kw_only=True)
class Journal:
    """The journal of a folder, `writing.json`.

    Args:
        job: what is written: its version, dim, dtype and source.
        shards: those that are finished, in order; others in the folder are not.
    """

    job: dict[str, Any]
    shards: tuple[Shard, ...] = ()

    def write(self, folder: Path) -> None:
        """Write it, atomically."""
        write_json(folder / NAME, asdict(self))


def begin(folder: Path, job: dict[str, Any]) -> tuple[Shard, ...]:
    """Take up the store that `job` describes; return the shards that an interrupted writer has finished.

    Raises:
        InputError: the folder holds a complete store, or shards of another job, or some are missing.
    """
    if (folder / MANIFEST).exists():
        raise InputError(f"{folder}: holds a complete store; remove this folder to write it anew")
    job = json.loads(json.dumps(job))  # as it will be read back: no tuples
    there = sorted(path.name for path in folder.glob("shard-*.arrow"))
    if not there:
        if not _is_of(folder, job):
            for path in (*folder.glob("draft.*"), *folder.glob("flagged-*.json")):
                path.unlink()
        Journal(job=job).write(folder)
        return ()
    finished = _read(folder, job).shards[: len(there)]
    for index, name in enumerate(there):
        if name != shard_name(index):
            raise InputError(f"{folder}: has {name} but no {shard_name(index)}; remove this folder")
    for name in there[len(finished) :]:  # written, but not noted before the writer died
        (folder / name).unlink()
    return finished


def end(folder: Path) -> None:
    """Remove the journal of a store that is complete, and what was kept of its shards."""
    (folder / NAME).unlink(missing_ok=True)
    for path in folder.glob("flagged-*.json"):
        path.unlink()


@dataclass(frozen=True, kw_only=True)
class _Kept:
    flagged: tuple[Flagged, ...]


def keep(folder: Path, shard: str, flagged: Sequence[Flagged]) -> None:
    """Write what is odd about the sets of a shard: who goes on with it does not see them again."""
    path = _beside(folder, shard)
    if flagged:
        write_json(path, asdict(_Kept(flagged=tuple(flagged))))
    else:
        path.unlink(missing_ok=True)


def kept(folder: Path, shard: str) -> tuple[Flagged, ...]:
    """Return what `keep` wrote; nothing where it wrote nothing."""
    path = _beside(folder, shard)
    return read_record(_Kept, path, what="what is odd about a shard").flagged if path.exists() else ()


def shard_name(index: int) -> str:
    """Return the file name of a store's shard."""
    return f"shard-{index:05d}.arrow"


def _beside(folder: Path, shard: str) -> Path:
    return folder / f"{Path(shard).stem.replace('shard', 'flagged')}.json"


def _is_of(folder: Path, job: dict[str, Any]) -> bool:
    """Whether a writer of this job left the folder as it is."""
    try:
        return read_record(Journal, folder / NAME, what="the journal of an interrupted writer").job == job
    except InputError:
        return False


def _read(folder: Path, job: dict[str, Any]) -> Journal:
    path = folder / NAME
    if not path.exists():
        raise InputError(f"{folder}: holds shards but neither {MANIFEST} nor {NAME}; remove this folder")
    try:
        journal = read_record(Journal, path, what="the journal of an interrupted writer")
    except InputError as error:
        raise InputError(f"{error}. It is damaged, or of another version; remove this folder") from error
    if journal.job != job:
        other = [
            f"{key} was {journal.job.get(key)}, is {value}"
            for key, value in job.items()
            if journal.job.get(key) != value
        ]
        raise InputError(
            f"{folder}: holds finished shards of another job ({'; '.join(other)}). "
            f"Repeat that job to go on with it, or remove this folder to start anew"
        )
    return journal
