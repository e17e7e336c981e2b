"""Files read in one way, whether they are on this machine or in object storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infra import files
from infra.storage import remote
from infra.storage.cache import whole
from infra.storage.places import Url


def is_file(path: Path | Url) -> bool:
    """Whether there is a file of this name."""
    return remote.exists(path) if isinstance(path, Url) else path.is_file()


def read_json(path: Path | Url, *, what: str) -> Any:
    """Read a UTF-8 JSON file.

    Raises:
        InputError: it is missing, is not JSON, or the storage does not answer or refuses.
    """
    return remote.read_json(path, what=what) if isinstance(path, Url) else files.read_json(path, what=what)


def at_hand(path: Path | Url, *, sha256: str = "") -> Path:
    """Return a file of this machine: the one that is named, or a copy of it in the cache, as `cache.whole` makes it."""
    return whole(path, sha256=sha256) if isinstance(path, Url) else path
