"""Thumbnails of image and video files."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from threading import Lock

import numpy as np
from PIL import Image

from polypool.infra.errors import InputError
from polypool.infra.pictures import load
from polypool.infra.video import BadVideo, VideoReader, choose_decoder

SIDE = 320  # pixels, of the longer side
_PATIENCE = 30.0  # seconds for one video


class Thumbnails(AbstractContextManager["Thumbnails"]):
    """Makes thumbnails of images, or of frames of videos; safe to share between threads.

    Args:
        video: the files are videos.
    """

    def __init__(self, *, video: bool) -> None:
        self.video = video
        self._lock, self._decodes = Lock(), True
        self._reader: VideoReader | None = None

    def images(self, file: Path | None, *, at_most: int = 1) -> list[Image.Image]:
        """Return small copies in RGB: of the image, or of frames of the video, evenly over time.

        There are none if there is no file or it does not decode.

        Args:
            file: the image or video.
            at_most: how many frames of a video; one is taken from its middle.
        """
        if file is None:
            return []
        if self.video:
            frames = self._frames(file, 3 if at_most == 1 else at_most)
            return frames if at_most > 1 else frames[len(frames) // 2 :][:1]
        image = load(file, side=SIDE)
        return [] if isinstance(image, str) else [_shrunk(image)]

    def _frames(self, path: Path, at_most: int) -> list[Image.Image]:
        with self._lock:
            try:
                if self._reader is None and self._decodes:
                    self._reader = VideoReader(decoder=choose_decoder(), timeout=_PATIENCE)
                if self._reader is None:
                    return []
                return [
                    _shrunk(Image.fromarray(np.array(frame.x_HW3)))
                    for frame in self._reader.frames(path, at_most=at_most)
                ]
            except BadVideo:
                return []
            except (
                InputError,
                RuntimeError,
            ):  # no decoder, or it does not start: no other video would decode
                self._decodes, self._reader = False, None
                return []

    def close(self) -> None:
        """End the process that decodes videos."""
        with self._lock:
            if self._reader is not None:
                self._reader.close()
                self._reader = None

    def __exit__(self, *error: object) -> None:
        self.close()


def _shrunk(image: Image.Image) -> Image.Image:
    image.thumbnail((SIDE, SIDE))
    return image
