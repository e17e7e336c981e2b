"""Images to features in Ray's workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise

import numpy as np
from PIL import Image

from encoders.backbones.base import Described, build_backbone
from infra.pictures.opening import load
from infra.trust import trust_modules
from pipelines.extraction.workers import Batch, Row


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

    def __call__(self, batch: Batch) -> list[Row]:
        """Return a row for each of the batch's `ids` and `paths`: its features, or why there are none."""
        loaded = list(self._pool.map(load, batch["paths"]))
        images = [image for image in loaded if isinstance(image, Image.Image)]
        features = iter(self._backbone(images) if images else [])
        rows = []
        for id, path, image in zip(batch["ids"], batch["paths"], loaded, strict=True):
            row = {"id": id, "path": path, "why": "", "x_NW": None}
            if isinstance(image, str):
                row["why"] = image
            else:
                row["x_NW"] = side_by_side(next(features))
            rows.append(row)
        return rows


def side_by_side(described: np.ndarray | Described) -> np.ndarray:
    """Return what a backbone returned for an image as a row has it: float32 `(N, W)`, columns beside the vectors."""
    x = described.side_by_side() if isinstance(described, Described) else described
    return np.ascontiguousarray(x, np.float32)


def parted(x_NW: np.ndarray, columns: Mapping[str, int]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the vectors of a row's array, and its columns."""
    first = x_NW.shape[1] - sum(columns.values())
    ends = accumulate((columns[name] for name in sorted(columns)), initial=first)
    return x_NW[:, :first], {
        name: x_NW[:, begin:end] for name, (begin, end) in zip(sorted(columns), pairwise(ends), strict=True)
    }
