"""Images to features in Ray's workers, and the stream of rows that any kind of worker makes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from PIL import Image

from encoders.backbones.base import build_backbone
from infra.pictures.opening import load
from infra.trust import trust_modules, trusted
from pipelines.extraction.plan import Batch, Plan, Planned


class ImageExtractor:
    """Decodes and describes batches of images; lives in a Ray actor.

    Args:
        backbone: spec of the backbone.
        threads: images decoded at a time.
        trusting: modules whose code the spec may name.
    """

    one_by_one = False
    """Whether each is described by itself, whoever comes with it."""

    def __init__(self, *, backbone: str, threads: int, trusting: Sequence[str] = ()) -> None:
        trust_modules(*trusting)
        self._backbone = build_backbone(backbone)
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


def stream(
    batches: Iterable[Batch],
    *,
    extractor: Callable[..., Any],
    options: dict[str, Any],
    gpu: bool,
    block: int,
) -> Iterator[dict[str, Any]]:
    """Yield an extractor's rows for all batches, in their order, from as many actors as the cluster has room for.

    Args:
        batches: what the extractor is called with; all are asked for before the first row comes.
        extractor: class of the actors.
        options: what its constructor gets beside `threads` and `trusting`.
        gpu: give each actor a GPU if there is one.
        block: batches that travel together, at most.
    """
    import ray

    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    has = ray.cluster_resources()
    cpus, gpus = int(has.get("CPU", 1)), int(has.get("GPU", 0)) if gpu else 0
    threads = max(1, cpus // gpus) if gpus else 1
    plan = Plan.of(batches)
    workers = min(gpus or cpus, plan.count)
    spans = [{"first": first, "end": end} for first, end in plan.spans(most=block, workers=workers)]
    options = options | {"threads": threads, "trusting": trusted()}
    rows = ray.data.from_items(spans, override_num_blocks=len(spans)).flat_map(
        Planned,
        fn_constructor_kwargs={"extractor": extractor, "options": options, "plan": plan},
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=threads,
        num_gpus=1 if gpus else 0,
    )
    yield from rows.iter_rows()
