"""Small feature stores."""

from __future__ import annotations

import os
import signal
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


def write(folder: Path, sets: dict[str, np.ndarray], *, dtype: str = "float16", **options: Any) -> Manifest:
    """Write a store with several shards; `options` go to `StoreWriter.close`."""
    with StoreWriter(
        folder, dim=DIM, dtype=dtype, source={"made": "here"}, shard_bytes=SHARD_BYTES
    ) as writer:
        for id, x_ND in sets.items():
            writer.add(id, x_ND)
        return writer.close(**options)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file, but for what a writer that was killed held."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def crash_after(folder: Path, sets: dict[str, np.ndarray], count: int) -> None:
    """Write in a process that is killed after `count` sets."""
    child = os.fork()
    if not child:
        writer = StoreWriter(folder, dim=DIM, source={"made": "here"}, shard_bytes=SHARD_BYTES)
        for id in list(sets)[:count]:
            writer.add(id, sets[id])
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def go_on(folder: Path, sets: dict[str, np.ndarray]) -> None:
    """Finish what `crash_after` began."""
    with StoreWriter(folder, dim=DIM, source={"made": "here"}, shard_bytes=SHARD_BYTES) as writer:
        for id, x_ND in sets.items():
            if id not in writer.done:
                writer.add(id, x_ND)
