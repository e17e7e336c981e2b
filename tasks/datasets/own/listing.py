"""Which files are below a folder, asked by path."""

from __future__ import annotations

import os
from pathlib import Path


class Listing:
    """The files below a folder. Each folder in it is listed once, and not before it is asked for.

    To ask for 123,287 files one by one is slow on a network disk, and to list a whole disk is no faster.

    Args:
        folder: that paths start from; absolute paths stand for themselves.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = folder
        self._names: dict[str, frozenset[str]] = {}

    def has(self, path: str) -> bool:
        """Whether there is such a file."""
        below, name = os.path.split(path)
        if below not in self._names:
            try:
                self._names[below] = frozenset(os.listdir(os.path.join(self._folder, below)))
            except (OSError, ValueError):  # no such folder, or a name that no folder can have
                self._names[below] = frozenset()
        return name in self._names[below]
