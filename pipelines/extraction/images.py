"""Images to features in Ray's workers, and the stream of rows that any kind of worker makes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from PIL import Image

from encoders.backbones.base import Described, build_backbone
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
                row["data"] = as_bytes(next(features))
            rows.append(row)
        return rows


def as_bytes(described: np.ndarray | Described) -> bytes:
    """Return what a backbone returned for an image as a row carries it: float32, vectors and columns side by side."""
    x = described.side_by_side() if isinstance(described, Described) else described
    return np.ascontiguousarray(x, np.float32).tobytes()


def parted(x_NW: np.ndarray, columns: Mapping[str, int]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the vectors of a row's array, and its columns."""
    first = x_NW.shape[1] - sum(columns.values())
    ends = accumulate((columns[name] for name in sorted(columns)), initial=first)
    return x_NW[:, :first], {
        name: x_NW[:, begin:end] for name, (begin, end) in zip(sorted(columns), pairwise(ends), strict=True)
    }


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
