"""Memory of reading a store, as the store grows tenfold: what the process takes should not grow with it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from infra.store import FeatureStore
from pipelines.benchmarks.made_up import made_up_store
from pipelines.benchmarks.measure import Sides, apart, memory
from pipelines.benchmarks.row import Row


@dataclass(frozen=True, kw_only=True)
class Size:
    """The small store has `sets` of 36 vectors; from both stores as many `batches` of `batch` sets are read."""

    sets: int = 680
    vectors: int = 36
    dim: int = 2048
    batch: int = 128
    batches: int = 60
    rounds: int = 3


QUICK = Size(sets=50, vectors=8, dim=64, batch=8, batches=5, rounds=1)


def store_memory(*, quick: bool = False) -> list[Row]:
    """Measure the growth of a fresh process's own memory while it reads a store, and one ten times as large."""
    size = QUICK if quick else Size()
    with tempfile.TemporaryDirectory() as name:
        folders = {times: Path(name) / str(times) for times in (10, 1)}
        stores = {
            times: made_up_store(folder, np.full(size.sets * times, size.vectors), dim=size.dim)
            for times, folder in folders.items()
        }
        calls = [(folder, size.batches, size.batch) for folder in folders.values()]
        found_R2K = np.array([apart(read, calls) for _ in range(size.rounds)])
        large, small = (
            sum(shard.bytes for shard in store.manifest.shards) / 1e6 for store in stores.values()
        )
    own_R2, (file_large, file_small) = found_R2K[..., 0], np.median(found_R2K[..., 1], axis=0)
    return [
        Row(
            name="store memory / 10x",
            measured=f"largest growth of anonymous memory over {size.batches} batches of {size.batch} sets",
            unit="MB",
            goal="at most",
            target=1.25,
            note=f"Ours: a store of {large:,.0f} MB; reference: of {small:,.0f} MB. A batch takes "
            f"{size.batch * size.vectors * size.dim * 2 / 1e6:.0f} MB. Pages of the files that were mapped: "
            f"{file_large:,.0f} and {file_small:,.0f} MB; they belong to the page cache and are given back on demand.",
            **Sides(ours_R=own_R2[:, 0], reference_R=own_R2[:, 1]).numbers(),
        )
    ]


def read(folder: Path, batches: int, batch: int) -> tuple[float, float]:
    """Read random batches as training does; return the growth of anonymous and of file memory in MB."""
    before, rng, most = memory(), np.random.default_rng(0), 0.0
    store = FeatureStore.open(folder)
    row_S = store.rows([str(number) for number in range(len(store))])
    for _ in range(batches):
        x_BND, _ = store.padded(rng.choice(row_S, batch))
        most = max(most, memory()["RssAnon"])
        del x_BND
    return most - before["RssAnon"], memory()["RssFile"] - before["RssFile"]
