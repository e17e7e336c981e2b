"""What an unfinished feature store is, so that the next writer knows whether it may go on with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from infra.errors import InputError
from infra.files import read_json, write_json
from infra.store.manifest import NAME as MANIFEST

_NAME = "writing.json"


def begin(folder: Path, job: dict[str, Any]) -> list[Path]:
    """Take up the store that `job` describes; return the shards that an interrupted writer has finished.

    Raises:
        InputError: the folder holds a complete store, or shards of another job.
    """
    if (folder / MANIFEST).exists():
        raise InputError(f"{folder}: holds a complete store; remove this folder to write it anew")
    job = json.loads(json.dumps(job))  # as it will be read back: no tuples
    shards = sorted(folder.glob("shard-*.arrow"))
    if shards:
        _compare(folder, job)
    else:
        write_json(folder / _NAME, job)
    for index, path in enumerate(shards):
        if path.name != shard_name(index):
            raise InputError(f"{folder}: has {path.name} but no {shard_name(index)}; remove this folder")
    return shards


def end(folder: Path) -> None:
    """Remove the journal of a store that is complete."""
    (folder / _NAME).unlink(missing_ok=True)


def shard_name(index: int) -> str:
    """Return the file name of a store's shard."""
    return f"shard-{index:05d}.arrow"


def _compare(folder: Path, job: dict[str, Any]) -> None:
    path = folder / _NAME
    if not path.exists():
        raise InputError(f"{folder}: holds shards but neither {MANIFEST} nor {_NAME}; remove this folder")
    before = read_json(path, what="the journal of an interrupted writer")
    if before != job:
        other = [
            f"{key} was {before.get(key)}, is {value}"
            for key, value in job.items()
            if before.get(key) != value
        ]
        raise InputError(
            f"{folder}: holds finished shards of another job ({'; '.join(other)}). "
            f"Repeat that job to go on with it, or remove this folder to start anew"
        )
