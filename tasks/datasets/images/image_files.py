"""The image files of a folder, found by the numbers or names that annotations know them by."""

from __future__ import annotations

import os
import re
from pathlib import Path

from infra.errors import InputError
from infra.files import existing_folder, walk

SUFFIXES = (".jpg", ".jpeg", ".png")
_NUMBER = re.compile(r"0*(\d+)$")


class ImageFiles:
    """The images below a folder, at any depth.

    An image `7` is `7.jpg`, or a file whose name ends in that number, such as `COCO_train2014_000000000007.jpg`.
    The folder is listed once: to ask for 123,287 files one by one is slow on a network disk.

    Args:
        folder: which.

    Raises:
        InputError: there is no such folder, or no image in it.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = existing_folder(folder, what="the folder of images")
        self._paths: dict[str, list[str]] = {}
        for below, names in walk(self.folder):
            for name in names:
                stem, suffix = os.path.splitext(name)
                if suffix.lower() in SUFFIXES:
                    for id in _ids(stem):
                        self._paths.setdefault(id, []).append(os.path.normpath(os.path.join(below, name)))
        if not self._paths:
            raise InputError(f"{folder}: holds no images; expected files that end in {', '.join(SUFFIXES)}")

    def find(self, id: str, *, prefer: str = "") -> str | None:
        """Return an image's path below the folder, or None.

        Args:
            id: a number or a name.
            prefer: of several files, one whose path has this in it is taken, such as `train2014`; then the first by
                name.
        """
        paths = self._paths.get(id)
        return min(paths, key=lambda path: (prefer not in path, path)) if paths else None


def _ids(stem: str) -> set[str]:
    number = _NUMBER.search(stem)
    return {stem, number[1]} if number else {stem}
