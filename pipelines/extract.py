"""Turn the images of a corpus into a feature store, on Ray Data.

python -m pipelines.extract --corpus DIR --backbone 'cells(grid=7)' --out DIR

Images are decoded and described by Ray's workers; the store is written here, in the order of the corpus, so the same
images give the same bytes. A run that was stopped goes on where it was when it is started again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro
from PIL import Image
from tqdm import tqdm

from encoders.backbones.rgb import load
from infra.errors import InputError, command
from infra.launch import ray_session
from infra.manifest import Manifest
from infra.registry import BACKBONES
from infra.skipped import describe
from infra.store_writer import StoreWriter
from tasks.datasets.corpus import Corpus, Item

_BLOCK = 4  # batches that travel together


class Extractor:
    """Decodes and describes batches of images; lives in a Ray actor.

    Args:
        backbone: spec of the backbone.
        threads: images decoded at a time.
    """

    def __init__(self, *, backbone: str, threads: int) -> None:
        self._backbone = BACKBONES.build(backbone)
        self._pool = ThreadPoolExecutor(threads)

    def __call__(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        """Return a row for each of the batch's `ids` and `paths`: its features, or why there are none."""
        loaded = list(self._pool.map(load, batch["paths"]))
        images = [image for image in loaded if isinstance(image, Image.Image)]
        features = iter(self._backbone(images) if images else [])
        rows = []
        for id, path, image in zip(batch["ids"], batch["paths"], loaded, strict=True):
            row = {"id": id, "path": path, "why": "", "data": b""}
            if isinstance(image, str):
                row["why"] = image
            else:
                x_ND = np.ascontiguousarray(next(features), np.float32)
                row["data"] = x_ND.tobytes()
            rows.append(row)
        return rows


def stream(batches: list[dict[str, Any]], *, backbone: str, gpu: bool) -> Iterator[dict[str, Any]]:
    """Yield `Extractor`'s rows for all batches, in their order, from as many actors as the cluster has room for.

    Args:
        batches: `{"ids", "paths"}` each.
        backbone: spec of the backbone.
        gpu: give each actor a GPU if there is one.
    """
    import ray

    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    has = ray.cluster_resources()
    cpus, gpus = int(has.get("CPU", 1)), int(has.get("GPU", 0)) if gpu else 0
    threads = max(1, cpus // gpus) if gpus else 1
    rows = ray.data.from_items(batches, override_num_blocks=-(-len(batches) // _BLOCK)).flat_map(
        Extractor,
        fn_constructor_kwargs={"backbone": backbone, "threads": threads},
        compute=ray.data.ActorPoolStrategy(size=min(gpus or cpus, len(batches))),
        num_cpus=threads,
        num_gpus=1 if gpus else 0,
    )
    yield from rows.iter_rows()


def extract(
    *,
    corpus: Path,
    out: Path,
    backbone: str = "cells",
    dtype: Literal["float16", "float32"] = "float16",
    batch: int = 16,
    splits: tuple[str, ...] = (),
    limit: int | None = None,
) -> None:
    """Turn the images of a corpus into a feature store.

    An image that is missing or does not decode is skipped, counted and listed. The manifest has the statistics of
    the training split's features. Run again after an interruption, it goes on where it stopped.

    Args:
        corpus: folder of the corpus, as ingest writes it.
        out: folder of the store.
        backbone: what describes an image: cells, resnet or vit, with parameters, such as 'cells(grid=7)'.
        dtype: what numbers are stored as.
        batch: images that go through the backbone together.
        splits: the splits to extract; by default all of the corpus.
        limit: take only the first images of each split.

    Raises:
        InputError: no corpus, an unknown backbone or split, a finished store in `out`, or no usable image.
    """
    if batch < 1 or (limit is not None and limit < 1):
        raise InputError(f"--batch and --limit must be at least 1, got {batch} and {limit}")
    started = time.monotonic()
    opened = Corpus.open(corpus)
    chosen = list(splits or opened.splits)
    items = [item for split in chosen for item in opened.items(split)[:limit]]
    batches = [_batch(opened, items[first : first + batch]) for first in range(0, len(items), batch)]
    built = BACKBONES.build(backbone)
    job = {"corpus": opened.digest, "splits": chosen, "limit": limit, "batch": batch}
    source = {"extractor": built.describe()} | job
    gpu = getattr(built, "gpu", False)
    with StoreWriter(out, dim=built.dim, dtype=dtype, source=source) as writer:
        before = len(writer.done)
        # a batch that is done in part is sent whole: who is in it may change the last bit of its features
        left = [each for each in batches if not writer.done.issuperset(each["ids"])]
        stored = writer.done | _write(writer, left, backbone=backbone, gpu=gpu, dim=built.dim)
        train = [item.id for item in items if item.split == "train" and item.id in stored]
        manifest = writer.close(statistics_of=train or None)
    _report(out, manifest, new=manifest.sets - before, seconds=time.monotonic() - started)


def _batch(corpus: Corpus, items: list[Item]) -> dict[str, list[str]]:
    return {"ids": [item.id for item in items], "paths": [str(corpus.image_path(item)) for item in items]}


def _write(
    writer: StoreWriter, batches: list[dict[str, list[str]]], *, backbone: str, gpu: bool, dim: int
) -> set[str]:
    """Store the features of all batches; return the ids that have some."""
    if not batches:
        return set()
    stored = set()
    total = sum(len(each["ids"]) for each in batches)
    with ray_session(), tqdm(total=total, desc="extract", unit="image") as bar:
        for row in stream(batches, backbone=backbone, gpu=gpu):
            bar.update()
            id, where = row["id"], f"id {row['id']}, {row['path']}"
            if row["why"]:
                writer.skip(where, row["why"])
                continue
            x_ND = np.frombuffer(row["data"], np.float32).reshape(-1, dim)
            if writer.offer(id, x_ND, where=where) is None:
                stored.add(id)
    return stored


def _report(out: Path, manifest: Manifest, *, new: int, seconds: float) -> None:
    size = sum(shard.bytes for shard in manifest.shards)
    numbers = f"{manifest.vectors:,} vectors of {manifest.dim} x {manifest.dtype}, {size:,} bytes"
    print(f"{out}: {manifest.sets:,} images, {numbers}")
    print(f"{new:,} of them now, in {seconds:.1f} seconds: {new / seconds:.1f} images a second")
    print(describe(manifest.skipped))


@command
def main() -> None:
    """Extract what the command line says."""
    tyro.cli(extract, prog="python -m pipelines.extract")


if __name__ == "__main__":
    main()
