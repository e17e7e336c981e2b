"""Small feature stores."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from polypool.infra.store import StoreWriter
from polypool.infra.store.manifest import Manifest

DIM = 12
SHARD_BYTES = 1200  # about ten sets of float16


def make_sets(count: int = 40, *, seed: int = 0) -> dict[str, np.ndarray]:
    """Return sets of 1 to 8 vectors, by id."""
    random = np.random.default_rng(seed)
    return {
        f"id{i}": random.standard_normal((random.integers(1, 9), DIM)).astype(np.float32)
        for i in range(count)
    }


def store_writer(folder: str | Path, **options: Any) -> StoreWriter:
    """Return a writer of a store with several shards."""
    return StoreWriter(
        folder, **{"dim": DIM, "source": {"made": "here"}, "shard_bytes": SHARD_BYTES} | options
    )


def fill(writer: StoreWriter, sets: dict[str, np.ndarray]) -> None:
    """Add the sets that are not stored yet."""
    for id, x_ND in sets.items():
        if id not in writer.done:
            writer.add(id, x_ND)


def write(
    folder: str | Path,
    sets: dict[str, np.ndarray],
    *,
    statistics_of: Iterable[str] = (),
    **options: Any,
) -> Manifest:
    """Write a store, or finish the one that `crash_after` began; `options` go to its writer."""
    with store_writer(folder, **options) as writer:
        fill(writer, sets)
        return writer.close(statistics_of=statistics_of)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file, except the lock of a killed writer."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def crash_after(folder: Path, sets: dict[str, np.ndarray], count: int, **options: Any) -> None:
    """Write in a process that is killed after `count` sets."""
    child = os.fork()
    if not child:
        fill(store_writer(folder, **options), dict(list(sets.items())[:count]))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def flip(path: Path, at: int, bit: int = 1) -> None:
    """Flip bits in a new copy of a file, because processes that have mapped the old one must not see the change."""
    data = bytearray(path.read_bytes())
    data[at] ^= bit
    path.unlink()
    path.write_bytes(data)
