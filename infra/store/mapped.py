"""A file mapped into memory for reading at random: what is fetched is read, and little else.

Left to itself, the system finds only when a page is touched that it is not in memory. It then waits for the disk, page
after page, and reads around each of them, on some machines megabytes: where data is larger than memory, these drive out
what was wanted. So nothing is read around, and what is about to be touched is fetched first: the disk then reads all
parts of a batch side by side.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

try:
    import resource
except ImportError:  # not a POSIX system
    resource = None

Place = TypeVar("Place")
SURE = 16
"""So many batches are fetched ahead before it is tried again whether that is needed."""
_PIECE = 128 << 10  # bytes; of longer advice a disk may heed no more than this, the usual read-ahead
_OTHER_FILES = 512
FILES_EACH = 2
"""How many files the system counts as open for each that is mapped: Python's mapping keeps one to itself."""


class MappedFile:
    """A file's bytes, read-only; `buffer` is what numpy and Arrow make views of.

    Systems and file systems that take no advice are read as they like: only the speed differs.

    Args:
        path: of the file, which must not be empty, or a descriptor of it, which stays the caller's.
        size: how many of its bytes; all where 0.

    Raises:
        OSError, ValueError: it cannot be opened or mapped.
    """

    def __init__(self, path: Path | int, *, size: int = 0) -> None:
        descriptor = os.dup(path) if isinstance(path, int) else os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, descriptor)
        self.buffer = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
        self._descriptor = descriptor
        self._advise_all("MADV_RANDOM")

    def __len__(self) -> int:
        return len(self.buffer)

    def fetch(self, start: int, end: int) -> None:
        """Have the system begin to read some bytes, as far as they are not in memory, without waiting for them.

        Through the file and not the mapping, as Python's `mmap.madvise` would stop all other threads where the disk's
        queue is full.
        """
        if not hasattr(os, "posix_fadvise"):
            return
        end = min(end, len(self))
        for at in range(start - start % mmap.PAGESIZE, end, _PIECE):
            with suppress(OSError):
                os.posix_fadvise(self._descriptor, at, min(_PIECE, end - at), os.POSIX_FADV_WILLNEED)

    def expect_in_order(self) -> None:
        """From now on the file is read from its beginning to its end, so that reading ahead is right."""
        self._advise_all("MADV_SEQUENTIAL")

    def _advise_all(self, name: str) -> None:
        if hasattr(mmap, name):
            with suppress(OSError):
                self.buffer.madvise(getattr(mmap, name))


class Ahead(Generic[Place]):
    """Has the parts of a batch fetched before they are touched, where they are not in memory.

    To fetch is a call to the system for each part, all for nothing where memory holds them: a third of the time that
    such a batch takes. So now and then a batch is begun without, and goes on so unless the disk had to be waited for.

    Args:
        fetch: has the system begin to read a part.
    """

    def __init__(self, fetch: Callable[[Place], None]) -> None:
        self._fetch, self._left = fetch, SURE

    def __call__(self, places: Sequence[Place]) -> Iterator[Place]:
        """Yield the parts of a batch, each to be touched before the next one is asked for."""
        before, asked = disk_waits(), 0
        if self._left > 0 or before is None:
            self._left -= 1
            asked = self._fetch_all(places)
        for number, place in enumerate(places):
            looked = number & (number - 1) == 0  # after 1, 2, 4, ...
            if asked == 0 and looked and disk_waits() != before:
                self._left = SURE
                asked = self._fetch_all(places[number:])
            yield place

    def _fetch_all(self, places: Sequence[Place]) -> int:
        for place in places:
            self._fetch(place)
        return len(places)


def disk_waits() -> int | None:
    """Return how often this thread waited for a page to be read from a disk; None where the system does not say."""
    if resource is None or not hasattr(resource, "RUSAGE_THREAD"):
        return None
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


def allow_files(count: int) -> None:
    """Have the system let this process map `count` files, where its limit is lower and may be raised."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_EACH * count + _OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # a system may have a limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
