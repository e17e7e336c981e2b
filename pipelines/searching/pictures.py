"""Small pictures of a corpus's images and videos, for the page: made anew, and of files that the corpus names alone."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from PIL import Image

from encoders.backbones.rgb import load
from infra.errors import InputError
from infra.video import BadVideo, choose_decoder
from infra.video_reader import VideoReader

SIDE = 320  # pixels
FRAMES, PAUSE = 8, 400  # of a video, and milliseconds between two
KEPT = 256  # small pictures

Make = Callable[[str], bytes | None]


class Pictures:
    """Serves by id: nothing but the items of a split can be asked for.

    Args:
        corpus: whose images or videos they are.
        items: of the split.
        video: they are videos.
    """

    def __init__(self, corpus: Any, items: Sequence[Any], *, video: bool) -> None:
        self.video, self._lock = video, Lock()
        self._corpus, self._items = corpus, {item.id: item for item in items}
        self._reader: VideoReader | None = None
        self.still: Make = lru_cache(KEPT)(self._still)
        self.moving: Make = lru_cache(KEPT)(self._moving)

    def known(self, id: str) -> bool:
        """Whether the split has an item of this id."""
        return id in self._items

    def file(self, id: str) -> Path | None:
        """Return the file of an item; None where there is no such item or file, or it lies outside the corpus."""
        item = self._items.get(id)
        if item is None or not item.path:
            return None
        path = Path(os.path.normpath(self._corpus.image_path(item)))
        manifest = self._corpus.manifest
        folder = manifest["images_in"] if "images_in" in manifest else manifest["images"]
        if folder and not path.is_relative_to(os.path.normpath(folder)):
            return None
        return path if path.is_file() else None

    def _still(self, id: str) -> bytes | None:
        """Return a JPEG of an image, or of the middle of a video; None where there is none or it does not decode."""
        path = self.file(id)
        if path is None:
            return None
        if self.video:
            images = self._frames(path)
            image = images[len(images) // 2] if images else "no frames"
        else:
            image = load(path)
        return None if isinstance(image, str) else _small(image, "JPEG", quality=85)

    def _moving(self, id: str) -> bytes | None:
        """Return a few frames of a video as an animated WebP, or None likewise."""
        path = self.file(id)
        images = self._frames(path) if path and self.video else []
        if not images:
            return None
        first, *others = (_shrunk(image) for image in images)
        return _encoded(
            first, "WEBP", save_all=True, append_images=others, duration=PAUSE, loop=0, quality=75
        )

    def _frames(self, path: Path) -> list[Image.Image]:
        with self._lock:
            try:
                if self._reader is None:
                    self._reader = VideoReader(decoder=choose_decoder())
                return [
                    Image.fromarray(np.array(x_HW3)) for x_HW3 in self._reader.frames(path, at_most=FRAMES)
                ]
            except (BadVideo, InputError):
                return []

    def close(self) -> None:
        """End the process that decodes."""
        with self._lock:
            if self._reader is not None:
                self._reader.close()
                self._reader = None


def _shrunk(image: Image.Image) -> Image.Image:
    image = image.copy()
    image.thumbnail((SIDE, SIDE))
    return image


def _small(image: Image.Image, format: str, **options: Any) -> bytes:
    return _encoded(_shrunk(image), format, **options)


def _encoded(image: Image.Image, format: str, **options: Any) -> bytes:
    data = io.BytesIO()
    image.save(data, format, **options)
    return data.getvalue()
