"""Small pictures of the items of a split, made anew of the files that the corpus names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any

import numpy as np
from PIL import Image

from encoders.backbones.rgb import load
from infra.errors import InputError
from infra.video.decoding import BadVideo, choose_decoder
from infra.video.reader import VideoReader

SIDE = 320  # pixels, of the longer side
_PATIENCE = 30.0  # seconds for one video


class Thumbnails:
    """Makes small pictures of images, or of frames of videos. Threads may share it.

    Args:
        corpus: whose items they are.
        items: of a split; questions, too, which stand for their images.
        video: they are videos.
    """

    def __init__(self, corpus: Any, items: Sequence[Any], *, video: bool) -> None:
        self.corpus, self.items, self.video = corpus, items, video
        self._lock, self._decodes = Lock(), True
        self._reader: VideoReader | None = None

    def file(self, number: int) -> Path | None:
        """Return the file of an item; None where there is none, or it lies outside the corpus's folder of images."""
        item, manifest = self.items[number], self.corpus.manifest
        if not item.path:
            return None
        path = Path(os.path.normpath(self.corpus.image_path(item)))
        folder = manifest["images_in"] if "images_in" in manifest else manifest["images"]
        if folder and not path.is_relative_to(os.path.normpath(folder)):
            return None
        return path if path.is_file() else None

    def images(self, number: int, *, at_most: int = 1) -> list[Image.Image]:
        """Return small copies in RGB: of the image, or of frames of the video, evenly over time.

        There are none where there is no file, or it does not decode.

        Args:
            number: of the item, in the split.
            at_most: how many frames of a video; one is taken from its middle.
        """
        path = self.file(number)
        if path is None:
            return []
        if self.video:
            frames = self._frames(path, 3 if at_most == 1 else at_most)
            return frames if at_most > 1 else frames[len(frames) // 2 :][:1]
        image = load(path, side=SIDE)
        return [] if isinstance(image, str) else [_shrunk(image)]

    def _frames(self, path: Path, at_most: int) -> list[Image.Image]:
        with self._lock:
            try:
                if self._reader is None and self._decodes:
                    self._reader = VideoReader(decoder=choose_decoder(), timeout=_PATIENCE)
                if self._reader is None:
                    return []
                return [
                    _shrunk(Image.fromarray(np.array(x_HW3)))
                    for x_HW3 in self._reader.frames(path, at_most=at_most)
                ]
            except BadVideo:
                return []
            except (
                InputError,
                RuntimeError,
            ):  # no decoder, or it does not start: the next video fares no better
                self._decodes, self._reader = False, None
                return []

    def close(self) -> None:
        """End the process that decodes videos."""
        with self._lock:
            if self._reader is not None:
                self._reader.close()
                self._reader = None

    def __enter__(self) -> Thumbnails:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _shrunk(image: Image.Image) -> Image.Image:
    image.thumbnail((SIDE, SIDE))
    return image
