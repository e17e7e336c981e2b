"""Training from a feature store in object storage of which nothing is cached yet."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.features.object_server import Link, bucket
from benchmarks.measure import Measurement, Scale, Sides, by_turns, elapsed
from benchmarks.training.watched import TrainingSize, random_run, train
from polypool.infra.compute.device import best_device
from polypool.infra.storage import cache
from polypool.infra.storage.places import place
from polypool.infra.store import FeatureStore
from polypool.pipelines.recipes.load import derive
from polypool.tasks.run import Run

URL = "s3://bench/regions"


@dataclass(frozen=True, kw_only=True)
class RemoteSize(TrainingSize):
    """An epoch of all captions of the images; `wanted` of them are evaluated by themselves."""

    tiny: ClassVar = {**TrainingSize.tiny, "images": 24, "wanted": 4, "rounds": 2}
    images: int = 384
    wanted: int = 50
    visual: str = "regions(width=256)"  # a quarter of the recipe's width: short steps wait sooner
    text: str = "bigru(width=256, embedding=64, min_count=1)"
    link: Link = field(default_factory=Link)

    @property
    def epoch(self) -> int:
        """Steps of an epoch, each image with its five captions."""
        return 5 * self.images // self.batch


def remote_store(scale: Scale = "full") -> list[Measurement]:
    """Measure an epoch from a cold remote store: how long it waits, what it fetches; and few sets of such a store."""
    size = RemoteSize.of(scale)
    with tempfile.TemporaryDirectory() as name:
        folder, copies = Path(name) / "data", Path(name) / "cache"
        run = random_run(folder, size)
        here = FeatureStore.open(folder / "regions")
        wanted_MB = size.images * size.regions * size.dim * np.dtype(here.dtype).itemsize / 1e6
        with bucket(folder, size.link, copies) as sent:
            epochs = [_epoch(run, size, copies, sent) for _ in range(size.rounds)]
            few = by_turns(
                lambda number: _cold(copies, lambda: _few(size, number)),
                lambda _: _cold(copies, lambda: _whole(here)),
                rounds=size.rounds,
            )
    waited_R, took_R, fetched_R = (np.array(part) for part in zip(*epochs, strict=True))
    return _rows(size, Sides(ours_R=waited_R, reference_R=took_R), fetched_R, wanted_MB, few)


def _rows(
    size: RemoteSize, epochs: Sides, fetched_R: np.ndarray, wanted_MB: float, few: Sides
) -> list[Measurement]:
    link = f"{size.link.rate / 1e6:.0f} MB/s in all, {1e3 * size.link.latency:.0f} ms before each answer"
    epoch = (
        f"an epoch of {size.epoch} steps of {size.batch} x {size.regions} x {size.dim} float16, "
        f"{size.visual} and BiGRU on {best_device()}"
    )
    common: dict[str, Any] = {"goal": "at most", "percent": True}
    return [
        Measurement(
            name="remote store, cold: wait for data",
            measured=f"part of {epoch}",
            unit="s",
            target=0.05,
            note=f"S3 on this machine: {link}. The first batch is part of it.",
            **common,
            **epochs.numbers(),
        ),
        Measurement(
            name="remote store, cold: bytes",
            measured=f"fetched for {epoch}; reference: bytes of its sets",
            unit="MB",
            target=1.05,
            goal="at most",
            **Sides(ours_R=fetched_R, reference_R=np.full(len(fetched_R), wanted_MB)).numbers(),
        ),
        Measurement(
            name="remote store, cold: few sets / whole shards",
            measured=f"opening and {size.wanted} of {size.images} sets of {size.regions} x {size.dim} float16",
            unit="s",
            target=1.0,
            goal="at most",
            note="Reference: all shards in one piece each, as a cache of whole files would fetch them first.",
            **few.numbers(),
        ),
    ]


def _epoch(run: Run, size: RemoteSize, copies: Path, sent: Any) -> tuple[float, float, float]:
    """Return how many seconds an epoch waited for data and took, and how many MB it fetched."""
    shutil.rmtree(copies, ignore_errors=True)
    before = sent.value
    watch = train(derive(run, data={"features": URL}), steps=size.epoch - 1, device=best_device())
    began_S, ended_S = np.array(watch.began), np.array(watch.ended)
    waited_S = began_S - ended_S[: len(began_S)]
    return float(waited_S.sum()), float(began_S[-1] - ended_S[0]), (sent.value - before) / 1e6


def _cold(copies: Path, work: Any) -> float:
    shutil.rmtree(copies, ignore_errors=True)
    return elapsed(work)


def _few(size: RemoteSize, number: int) -> None:
    store = FeatureStore.open(URL)
    chosen_K = np.random.default_rng(number).choice(size.images, size.wanted, replace=False)
    store.padded(store.rows([str(row) for row in chosen_K]))


def _whole(here: FeatureStore) -> None:
    for shard in here.manifest.shards:
        cache.whole(place(URL) / shard.file, sha256=shard.sha256)
