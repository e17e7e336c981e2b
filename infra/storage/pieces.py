"""A file of which some pieces are there: several processes fetch what each needs, and read all that any has fetched."""

from __future__ import annotations

import mmap
import os
import struct
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None

_LOCK = getattr(fcntl, "F_OFD_SETLKW", None)  # of an open file, not of a process: between threads, too


class Pieces:
    """The bytes of a file as far as they were fetched, and behind them a mark for each piece that is there.

    A piece is written before it is marked, and is the same whoever writes it, so that no reader needs a lock. Holes
    take no room on the disk. Where the file is deleted, who has it open goes on with it.

    Args:
        path: of the file, made where it does not exist.
        size: of the whole file in bytes.
        count: number of pieces, which whoever fetches them has numbered.

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
        """Whether the file was deleted: its room is free once everybody has let go of it."""
        return os.fstat(self.descriptor).st_nlink == 0

    def there(self) -> np.ndarray:
        """Return for each piece whether it is there, `(count,)` bool."""
        return np.frombuffer(os.pread(self.descriptor, self.count, self._marks_at), bool)

    def has(self, piece: int) -> bool:
        """Whether a piece is there."""
        return os.pread(self.descriptor, 1, self._marks_at + piece) == b"\1"

    def write(self, start: int, data: bytes | memoryview) -> None:
        """Write some bytes of the file, which are to be marked once a piece is complete.

        Raises:
            OSError: no space is left.
        """
        view = memoryview(data)
        while view:
            done = os.pwrite(self.descriptor, view, start)
            start, view = start + done, view[done:]

    def mark(self, first: int, last: int) -> None:
        """Mark the pieces from `first` to `last` as there."""
        os.pwrite(self.descriptor, b"\1" * (last + 1 - first), self._marks_at + first)

    @contextmanager
    def locked(self, start: int, end: int) -> Iterator[None]:
        """Let one thread of one process fetch these bytes at a time; others wait, and then find them there.

        Where the system has no such locks, they are fetched twice.
        """
        if _LOCK is None:
            yield
            return
        descriptor = os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDWR)
        try:
            fcntl.fcntl(
                descriptor, _LOCK, struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, start, end - start, 0)
            )
            yield
        finally:
            os.close(descriptor)

    def used(self) -> None:
        """Note that the file is in use, for who deletes the oldest; once a second is enough."""
        if (now := time.monotonic()) > self._used + 1:
            self._used = now
            os.utime(self.descriptor)
