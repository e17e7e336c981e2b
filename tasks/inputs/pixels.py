"""Images as training samples: decoded in threads, cropped and mirrored by numbers that any worker can repeat."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from encoders.visual.pixels import ImageTransform
from infra.errors import InputError
from infra.pictures.opening import load
from tasks.augmentations.sets import Draw, Drop

_STREAM = 2  # of random numbers; those before belong to the augmentation of sets


class Pixels:
    """The images of a split, as the visual encoder reads them.

    Args:
        paths: of the images, in order.
        transform: makes the encoder's input of an image.
        augment: which cells stay in training; all where None.
        threads: images decoded at a time; by default one for each core.

    Raises:
        InputError: images are missing.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        transform: ImageTransform,
        augment: Drop | None = None,
        threads: int | None = None,
    ) -> None:
        self.paths, self.transform, self.augment = list(paths), transform, augment
        _check(self.paths)
        self._pool = ThreadPoolExecutor(threads or len(os.sched_getaffinity(0)), "images")

    def batch(self, item_B: np.ndarray, *, sample_B: np.ndarray, draw: Draw | None) -> tuple[Tensor, Tensor]:
        """Return the pixels `(B, 3, S, S)` of the images `item_B`, float32, and the mask `(B, N)` of their cells.

        Args:
            item_B: numbers of the images in their split.
            sample_B: numbers of the samples that they are drawn for, which decide the augmentation.
            draw: source of the augmentation's random numbers; None takes whole images and all cells.

        Raises:
            InputError: an image does not decode.
        """
        mask_BN = np.ones((len(item_B), self.transform.cells), dtype=bool)
        u_B4: Sequence[np.ndarray | None] = [None] * len(item_B)
        if draw is not None:
            u_B4 = draw(sample_B[:, None], np.arange(4), _STREAM)
            if self.augment:
                mask_BN = np.stack(self.augment(mask_BN.sum(axis=1), sample_B, draw))
        paths = [self.paths[item] for item in item_B]
        pixels_B3SS = np.stack(list(self._pool.map(self._read, paths, u_B4)))
        return torch.from_numpy(pixels_B3SS), torch.from_numpy(mask_BN)

    def _read(self, path: Path, u_4: np.ndarray | None) -> np.ndarray:
        image = load(path)
        if isinstance(image, str):
            raise InputError(f"{path}: {image}; replace the file, or ingest the corpus without it")
        return self.transform(image, u_4)


def _check(paths: list[Path]) -> None:
    """Refuse missing images before training starts; each folder is listed once."""
    files = {folder: set(os.listdir(folder)) for folder in {p.parent for p in paths} if folder.is_dir()}
    missing = [path for path in paths if path.name not in files.get(path.parent, ())]
    if missing:
        raise InputError(
            f"{len(missing)} of {len(paths)} images are missing, the first is {missing[0]}; the corpus was ingested "
            "with another folder of images, or they were moved"
        )
