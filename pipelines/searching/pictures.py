"""Small pictures of a corpus's images and videos, for the page: made anew, and of files that the corpus names alone."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import PIL.Image
from cachetools import LRUCache

from pipelines.pages.thumbnails import Thumbnails
from tasks.datasets.corpus import Corpus, Item
from tasks.datasets.media import media_file
from tasks.datasets.questions import Image, QuestionCorpus

FRAMES, PAUSE = 8, 400  # of a video, and milliseconds between two
KEPT = 64 << 20  # bytes


class Pictures:
    """Serves by id: nothing but the items of a split can be asked for.

    Args:
        corpus: whose images or videos they are.
        items: of the split.
        video: they are videos.

    Attributes:
        kept: what was made, by id and media type, while there is room; those asked for longest ago go first. It is the
            server's to fill, in its one thread.
    """

    def __init__(
        self, corpus: Corpus | QuestionCorpus, items: Sequence[Item | Image], *, video: bool
    ) -> None:
        self.corpus, self.items, self.video = corpus, items, video
        self._number = {item.id: number for number, item in enumerate(items)}
        self._thumbnails = Thumbnails(video=video)
        self.kept: LRUCache[tuple[str, str], bytes] = LRUCache(KEPT, getsizeof=len)

    def known(self, id: str) -> bool:
        """Whether the split has an item of this id."""
        return id in self._number

    def file(self, id: str) -> Path | None:
        """Return the file of an item; None where there is no such item or file, or it lies outside the corpus."""
        return media_file(self.corpus, self.items[self._number[id]]) if id in self._number else None

    def still(self, id: str) -> bytes | None:
        """Return a JPEG of an image, or of the middle of a video; None where there is none or it does not decode."""
        images = self._images(id, at_most=1)
        return _encoded(images[0], "JPEG", quality=85) if images else None

    def sent(self, path: Path) -> str:
        """Return a file that is no item's, made small, as a `data:` address; empty where it does not decode."""
        images = self._thumbnails.images(path, at_most=1)
        data = base64.b64encode(_encoded(images[0], "JPEG", quality=85)).decode() if images else ""
        return data and f"data:image/jpeg;base64,{data}"

    def moving(self, id: str) -> bytes | None:
        """Return a few frames of a video as an animated WebP, or None likewise."""
        images = self._images(id, at_most=FRAMES) if self.video else []
        if not images:
            return None
        first, *others = images
        return _encoded(
            first, "WEBP", save_all=True, append_images=others, duration=PAUSE, loop=0, quality=75
        )

    def _images(self, id: str, *, at_most: int) -> list[PIL.Image.Image]:
        return self._thumbnails.images(self.file(id), at_most=at_most)

    def close(self) -> None:
        """End the process that decodes."""
        self._thumbnails.close()


def _encoded(image: PIL.Image.Image, format: str, **options: Any) -> bytes:
    data = io.BytesIO()
    image.save(data, format, **options)
    return data.getvalue()
