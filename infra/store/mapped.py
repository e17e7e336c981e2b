"""Memory-mapped file for random reads, whose parts are fetched before they are touched.

By default the system notices only when a page is touched that it is not in memory. It then waits for the disk, page
after page, and reads ahead, on some machines megabytes, which where data is larger than memory evict what is needed. So
read-ahead is off, and what is about to be touched is fetched first: the disk then reads all parts of a batch at once.
"""

from __future__ import annotations

import mmap
import os
import resource
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

Place = TypeVar("Place")
TRIAL_EVERY = 16
"""Batches that are fetched ahead before one is read without, to see whether that is necessary."""
_PIECE = 128 << 10  # bytes; the usual read-ahead, beyond which a disk may ignore advice
_OTHER_FILES = 512
FILES_EACH = 2
"""Open files for each that is mapped: Python's mapping has a descriptor of its own."""


class MappedFile:
    """A file's bytes, read-only; `buffer` is what numpy and Arrow make views of.

    Systems and file systems that take no advice only differ in speed.

    Args:
        path: of the file, which must not be empty.

    Raises:
        OSError, ValueError: it cannot be opened or mapped.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, descriptor)
        self.buffer = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        self._descriptor = descriptor
        self.advise("MADV_RANDOM")

    def __len__(self) -> int:
        return len(self.buffer)

    def fetch(self, start: int, end: int) -> None:
        """Have the system begin to read some bytes that are not in memory, without waiting for them.

        By the file and not the mapping, as Python's `mmap.madvise` blocks all other threads while the disk's queue is
        full.
        """
        if not hasattr(os, "posix_fadvise"):
            return
        end = min(end, len(self))
        for at in range(start - start % mmap.PAGESIZE, end, _PIECE):
            with suppress(OSError):
                os.posix_fadvise(self._descriptor, at, min(_PIECE, end - at), os.POSIX_FADV_WILLNEED)

    def advise(self, name: str) -> None:
        """Tell the system how the whole file is read, such as `MADV_SEQUENTIAL`, where it knows this advice."""
        if hasattr(mmap, name):
            with suppress(OSError):
                self.buffer.madvise(getattr(mmap, name))


class Ahead(Generic[Place]):
    """Fetches the parts of a batch before they are touched, while the disk is slower than memory.

    Each fetch is a system call, which where everything is in memory takes a third of a batch's time. So from time to
    time a batch is begun without, and the rest of it is fetched only if the thread had to wait for the disk.

    Args:
        fetch: has the system begin to read a part.
    """

    def __init__(self, fetch: Callable[[Place], None]) -> None:
        self._fetch, self._left = fetch, TRIAL_EVERY

    def __call__(self, places: Sequence[Place]) -> Iterator[Place]:
        """Yield the parts of a batch, each to be touched before the next one is requested."""
        before, fetched = disk_waits(), 0
        if self._left > 0 or before is None:
            self._left -= 1
            fetched = self._fetch_all(places)
        for number, place in enumerate(places):
            power_of_2 = number & (number - 1) == 0
            if fetched == 0 and power_of_2 and disk_waits() != before:
                self._left = TRIAL_EVERY
                fetched = self._fetch_all(places[number:])
            yield place

    def _fetch_all(self, places: Sequence[Place]) -> int:
        for place in places:
            self._fetch(place)
        return len(places)


def disk_waits() -> int | None:
    """Return how often this thread waited for a page to be read from a disk; None where the system does not count."""
    if not hasattr(resource, "RUSAGE_THREAD"):
        return None
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


def allow_files(count: int) -> None:
    """Raise this process's limit of open files, if possible and necessary, so that it can map `count`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_EACH * count + _OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # a system may have a limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
