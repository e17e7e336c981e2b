"""Image and video files, decoded in threads, for encoders that read pixels."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from polypool.encoders.visual.pixels import ImageTransform
from polypool.infra.digests import why_changed
from polypool.infra.errors import InputError
from polypool.infra.pictures import load
from polypool.infra.video import BadVideo, VideoReaders, choose_decoder
from polypool.tasks.inputs.augmentations import Draw, Drop

Modality = Literal["image", "video"]
_STREAM = 2  # of random numbers; 0 and 1 belong to the augmentation of sets and texts


class VisualFiles(ABC):
    """Files decoded in threads, cropped and mirrored by random numbers that any worker can repeat.

    Args:
        paths: of the files, in order.
        transform: makes the encoder's input of an image, or of a frame.
        augment: which cells stay in training; all if None.
        threads: files decoded at a time; by default one for each core.
        digests: SHA-256 of each file, empty where it is not known; none if None.

    Raises:
        InputError: files are missing.
    """

    modality: Modality

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        transform: ImageTransform,
        augment: Drop | None = None,
        threads: int | None = None,
        digests: Sequence[str] | None = None,
    ) -> None:
        self.paths, self.transform, self.augment = list(paths), transform, augment
        self.digests = digests or [""] * len(self.paths)
        folders = {path.parent for path in self.paths}  # each is listed once
        files = {folder: set(os.listdir(folder)) for folder in folders if folder.is_dir()}
        if missing := [path for path in self.paths if path.name not in files.get(path.parent, ())]:
            raise InputError(
                f"{len(missing)} of {len(self.paths)} {self.modality}s are missing, the first is {missing[0]}; the "
                f"corpus was ingested with another folder of {self.modality}s, or they were moved"
            )
        self.threads = threads or len(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(self.threads, f"{self.modality}s")

    def batch(self, item_B: np.ndarray, *, sample_B: np.ndarray, draw: Draw | None) -> tuple[Tensor, Tensor]:
        """Return the pixels, float32, and the mask of their cells.

        Those of images are `(B, 3, S, S)` and `(B, N)`; those of videos `(B, F, 3, S, S)`, zeros in the pads, and
        `(B, F * N)`.

        Raises:
            InputError: a file does not decode, or is another one than was ingested.
        """
        u_B4 = [None] * len(item_B) if draw is None else draw(sample_B[:, None], np.arange(4), _STREAM)
        pixels = [torch.from_numpy(x) for x in self._pool.map(self.read, item_B.tolist(), u_B4)]
        size_B = np.array([self.transform.cells * math.prod(x.shape[:-3]) for x in pixels])
        if self.augment and draw is not None:
            stay = self.augment(size_B, sample_B, draw)
        else:
            stay = [np.ones(size, bool) for size in size_B]
        mask_BN = pad_sequence([torch.from_numpy(stay_N) for stay_N in stay], batch_first=True)
        return pad_sequence(pixels, batch_first=True), mask_BN

    @abstractmethod
    def read(self, item: int, u_4: Any) -> np.ndarray:
        """Return the encoder's input of a file, cropped and mirrored by `u_4` as `ImageTransform` says."""

    def unreadable(self, item: int, why: str) -> InputError:
        """Return the error of a file that cannot be read."""
        return InputError(f"{self.paths[item]}: {why}; replace the file, or ingest the corpus without it")


class Pixels(VisualFiles):
    """Images, each `(3, S, S)`."""

    modality = "image"

    def read(self, item: int, u_4: Any) -> np.ndarray:
        image = load(self.paths[item], digest=self.digests[item])
        if isinstance(image, str):
            raise self.unreadable(item, image)
        return self.transform(image, u_4)


class Frames(VisualFiles):
    """Frames of videos, `(F, 3, S, S)` of each, with one crop for all frames of a video.

    Args:
        paths: as of `VisualFiles`, whose other parameters it has, too.
        frames: at most so many of each video, evenly spaced.

    Raises:
        InputError: files are missing, `frames` is 0, or PyAV is not installed.
    """

    modality = "video"

    def __init__(self, paths: Sequence[Path], *, frames: int, **how: Any) -> None:
        check_frames(frames)
        super().__init__(paths, **how)
        self.frames = frames
        self._readers = VideoReaders(self.threads, decoder=_decoder())

    def read(self, item: int, u_4: Any) -> np.ndarray:
        path = self.paths[item]
        if why := why_changed(path, self.digests[item]):
            raise self.unreadable(item, why)
        try:
            frames = self._readers.frames(path, at_most=self.frames)
            return np.stack([self.transform(Image.fromarray(x_HW3), u_4) for x_HW3, _ in frames])
        except BadVideo as bad:
            raise self.unreadable(item, str(bad)) from bad


def check_frames(frames: int) -> None:
    """Refuse to encode every frame of video files.

    Raises:
        InputError: `frames` is 0.
    """
    if frames < 1:
        raise InputError(
            "--data.max-frames 0 has the visual encoder read every frame of a video file; make it the number of frames "
            "of a video, such as 4"
        )


@cache
def _decoder() -> str:
    return choose_decoder()


def visual_files(
    paths: Sequence[Path], *, modality: Modality, frames: int, transform: ImageTransform, **how: Any
) -> VisualFiles:
    """Return `Pixels` of images, or `Frames` of videos with so many `frames` each."""
    if modality == "video":
        return Frames(paths, frames=frames, transform=transform, **how)
    return Pixels(paths, transform=transform, **how)
