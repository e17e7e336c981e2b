"""What was read of object storage, kept on this machine for all its processes, up to a number of bytes.

POLYPOOL_CACHE names the folder, POLYPOOL_CACHE_GB the bound in 10^9 bytes. What was not used for longest is deleted
first; who has a deleted file open or mapped keeps it until it lets go of it.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from infra.errors import InputError
from infra.files import FULL, make_folder
from infra.files import sha256 as sha256_of
from infra.storage.places import Url, local
from infra.storage.remote import RemoteFile, state

_GB = 100.0
_STEPS = 32  # as much of the bound may be fetched before it is looked at again
_PART = 8 << 20  # bytes of a whole file that are fetched at once
_IN_USE = 60.0  # seconds for which a whole file stays, as somebody may be about to open it


def folder() -> Path:
    """Return the folder of the cache, which is made where it does not exist.

    Raises:
        InputError: it cannot be made.
    """
    named = os.environ.get("POLYPOOL_CACHE")
    if named:
        return make_folder(local(named, what="POLYPOOL_CACHE").absolute())
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return make_folder(Path(caches) / "polypool" / "storage")


def bound() -> int:
    """Return how many bytes the cache may hold.

    Raises:
        InputError: POLYPOOL_CACHE_GB is no number above 0.
    """
    said = os.environ.get("POLYPOOL_CACHE_GB") or str(_GB)
    try:
        gigabytes = float(said)
    except ValueError:
        gigabytes = math.nan
    if not 0 < gigabytes < math.inf:
        raise InputError(f"POLYPOOL_CACHE_GB must be a number above 0, such as 100, not {said!r}")
    return int(gigabytes * 1e9)


def key(*names: object) -> str:
    """Return the name of what is kept, made of what tells it from all else, whatever that may hold."""
    return hashlib.sha256(repr([str(name) for name in names]).encode()).hexdigest()


def whole(url: Url, *, sha256: str = "") -> Path:
    """Return a copy of a file, fetched unless it is in the cache; one that was cut off goes on where it stopped.

    Args:
        url: of the file.
        sha256: of its bytes, where that is known; else a file of the same size and time is taken for the same.

    Raises:
        AbsentError: there is no such file.
        InputError: the storage does not answer or refuses, the bytes are others, or no space is left.
    """
    name = key(sha256) if sha256 else key(url, *state(url))
    place = make_folder(folder() / "files" / name)
    path, part = place / url.name, place / f".{url.name}.part"
    with FileLock(make_folder(folder() / "locks") / name):
        if not path.exists():
            if not _fetched(url, part, sha256) and not _fetched(url, part, sha256):
                raise InputError(
                    f"{url}: its bytes are not those that were written (SHA-256 differs); copy it again, or write "
                    "it anew"
                )
            os.replace(part, path)
    os.utime(place)
    return path


def _fetched(url: Url, part: Path, sha256: str) -> bool:
    """Fetch what is missing of a file; return whether all of it is what it has to be."""
    source = RemoteFile(url)
    with room(part), part.open("ab") as file:
        for at in range(file.tell(), source.size, _PART):
            file.write(data := source.read(at, min(at + _PART, source.size)))
            grown(len(data))
    good = part.stat().st_size == source.size and (not sha256 or sha256_of(part) == sha256)
    if not good:
        part.unlink()
    return good


@contextmanager
def room(path: Path) -> Iterator[None]:
    """Say clearly that the disk is full, where writing to the cache finds it."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        free = shutil.disk_usage(path.parent).free
        raise InputError(
            f"{path.parent}: no space left for what is read of object storage ({free:,} bytes are free); set "
            "POLYPOOL_CACHE to a folder on a larger disk, or POLYPOOL_CACHE_GB to fewer gigabytes"
        ) from error


class _Growth:
    """How much this process has added since it last looked at the bound."""

    def __init__(self) -> None:
        self._lock, self._bytes = threading.Lock(), math.inf  # the first time at once

    def add(self, count: int) -> bool:
        with self._lock:
            self._bytes += count
            due = self._bytes >= bound() / _STEPS
            if due:
                self._bytes = 0
            return due


_GROWTH = _Growth()


def grown(count: int) -> None:
    """Note that so many bytes were added; now and then the oldest files are deleted, if the bound is passed."""
    if _GROWTH.add(count):
        with suppress(Timeout), FileLock(make_folder(folder() / "locks") / "bound", timeout=0):
            _delete_oldest(folder(), bound())


def _delete_oldest(cache: Path, most: int) -> None:
    kept = []
    for path in [*cache.glob("shards/*"), *cache.glob("files/*")]:
        with suppress(FileNotFoundError):
            files = [path.stat(), *(file.stat() for file in path.glob("*"))]
            kept.append(
                (max(file.st_mtime for file in files), sum(file.st_blocks * 512 for file in files), path)
            )
    size = sum(count for _, count, _ in kept)
    for used, count, path in sorted(kept):
        if size <= most:
            return
        if path.is_dir():
            if used > time.time() - _IN_USE:
                continue
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        size -= count
