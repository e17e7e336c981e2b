"""Cache of object storage on this machine, shared by its processes and bounded in bytes.

POLYPOOL_CACHE names the folder, POLYPOOL_CACHE_GB the bound in 10^9 bytes. The least recently used files are deleted
first; a process that has a deleted file open or mapped keeps it.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import mmap
import os
import shutil
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from polypool.infra.errors import InputError
from polypool.infra.files import FULL, make_folder
from polypool.infra.files import sha256 as sha256_of
from polypool.infra.storage.places import Url, local, user_cache
from polypool.infra.storage.remote import RemoteFile, size_and_time

_DEFAULT_GB = 100.0
_STEPS = 32  # a process checks the bound after adding this part of it
_CHUNK = 8 << 20  # bytes of a whole file that are fetched at once
_IN_USE = 60.0  # seconds for which a whole file stays, as a process may be about to open it
_LOCK = getattr(fcntl, "F_OFD_SETLKW", None)  # of an open file, not of a process: between threads, too
_adding = threading.Lock()
_added = math.inf  # bytes that this process added since it checked the bound


def folder() -> Path:
    """Return the folder of the cache, made where necessary.

    Raises:
        InputError: it cannot be made.
    """
    if named := os.environ.get("POLYPOOL_CACHE"):
        return make_folder(local(named, what="POLYPOOL_CACHE").absolute())
    return make_folder(user_cache() / "storage")


def max_bytes() -> int:
    """Return how many bytes the cache may hold.

    Raises:
        InputError: POLYPOOL_CACHE_GB is no number above 0.
    """
    text = os.environ.get("POLYPOOL_CACHE_GB") or str(_DEFAULT_GB)
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = math.nan
    if not 0 < gigabytes < math.inf:
        raise InputError(f"POLYPOOL_CACHE_GB must be a number above 0, such as 100, not {text!r}")
    return int(gigabytes * 1e9)


def key(*names: object) -> str:
    """Return a file name for what `names` identify."""
    return hashlib.sha256(repr([str(name) for name in names]).encode()).hexdigest()


def whole(url: Url, *, sha256: str = "") -> Path:
    """Return a copy of a file, fetched unless it is in the cache; an interrupted one is completed.

    Args:
        url: of the file.
        sha256: of its bytes, where that is known; otherwise its size and time identify its content.

    Raises:
        AbsentError: there is no such file.
        InputError: the storage does not answer or refuses, the SHA-256 differs, or no space is left.
    """
    name = key(sha256) if sha256 else key(url, *size_and_time(url))
    place = make_folder(folder() / "files" / name)
    path, part = place / url.name, place / f".{url.name}.part"
    with _lock(name):
        if not path.exists():
            if not _fetch(url, part, sha256) and not _fetch(url, part, sha256):
                raise InputError(
                    f"{url}: its bytes are not those that were written (SHA-256 differs); copy it again, or write "
                    "it anew"
                )
            os.replace(part, path)
    os.utime(place)
    return path


def _lock(name: str, timeout: float = -1) -> FileLock:
    return FileLock(make_folder(folder() / "locks") / name, timeout=timeout)


def _fetch(url: Url, part: Path, sha256: str) -> bool:
    """Append what is missing of a file; return whether it is whole now, otherwise it is deleted."""
    source = RemoteFile(url)
    with no_space_explained(part), part.open("ab") as file:
        for at in range(file.tell(), source.size, _CHUNK):
            file.write(data := source.read(at, min(at + _CHUNK, source.size)))
            added(len(data))
    good = part.stat().st_size == source.size and (not sha256 or sha256_of(part) == sha256)
    if not good:
        part.unlink()
    return good


@contextmanager
def no_space_explained(path: Path) -> Iterator[None]:
    """Raise an InputError where a write to the cache finds the disk full."""
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


def added(count: int) -> None:
    """Count bytes that were added, and from time to time delete the least recently used files beyond the bound."""
    global _added
    with _adding:
        _added += count
        due = _added >= max_bytes() / _STEPS
        if due:
            _added = 0
    if due:
        with suppress(Timeout), _lock("bound", timeout=0):
            _delete_oldest(folder(), max_bytes())


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


class Pieces:
    """A partial copy of a file: its bytes as far as they were fetched, then a mark for each piece that is there.

    Several processes fetch what each needs, and read what any has fetched. A piece is written before it is marked, and
    its bytes are the same in every process, so that readers need no lock. Holes take no room on the disk.

    Args:
        path: of the copy, made where necessary.
        size: of the whole file in bytes.
        count: number of pieces, numbered by the caller.

    Raises:
        OSError: it cannot be made or opened.
    """

    def __init__(self, path: Path, *, size: int, count: int) -> None:
        self.path, self.size, self.count = path, size, count
        self._marks_at = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        weakref.finalize(self, os.close, self.descriptor)
        if os.fstat(self.descriptor).st_size < self._marks_at + count:
            os.ftruncate(self.descriptor, self._marks_at + count)
        self._used = 0.0

    @property
    def gone(self) -> bool:
        """Whether the copy was deleted; its room is free when no process has it open."""
        return os.fstat(self.descriptor).st_nlink == 0

    def there(self) -> np.ndarray:
        """Return for each piece whether it is there, `(count,)` bool."""
        return np.frombuffer(os.pread(self.descriptor, self.count, self._marks_at), bool)

    def fill(
        self, first: int, last: int, *, lock: tuple[int, int], fetch: Callable[[], dict[int, bytes]]
    ) -> None:
        """Fetch pieces that are not there. One thread of all processes does so; others wait, and find them there.

        Args:
            first, last: numbers of the pieces.
            lock: from and to which byte others wait.
            fetch: returns the bytes of the pieces, by where they begin.

        Raises:
            InputError: they cannot be fetched, or no space is left.
        """
        with self._locked(*lock):
            if self.there()[first : last + 1].all():
                return
            parts = fetch()
            with no_space_explained(self.path):
                for start, data in parts.items():
                    self._write(start, data)
                self._write(self._marks_at + first, b"\1" * (last + 1 - first))
        added(sum(map(len, parts.values())))

    def _write(self, start: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            done = os.pwrite(self.descriptor, view, start)
            start, view = start + done, view[done:]

    @contextmanager
    def _locked(self, start: int, end: int) -> Iterator[None]:
        """Lock some bytes against other threads and processes; where the system has no such locks, do nothing."""
        if _LOCK is None:
            yield
            return
        descriptor = os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDWR)
        try:
            lock = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, start, end - start, 0)
            fcntl.fcntl(descriptor, _LOCK, lock)
            yield
        finally:
            os.close(descriptor)

    def used(self) -> None:
        """Note the use, as the least recently used files are deleted first."""
        if (now := time.monotonic()) > self._used + 1:
            self._used = now
            os.utime(self.descriptor)
