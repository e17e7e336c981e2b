"""Memory of a process that trains: rare garbage collection, and freed memory that is kept for reuse."""

from __future__ import annotations

import atexit
import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_THRESHOLDS = (50_000, 20, 100)
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
_LARGEST, _FREE = 1 << 28, 1 << 30


def collect_rarely() -> None:
    """Collect garbage less often, and not at exit.

    With torch and MLflow in memory collections take a second of their import, and another one or two at the end.
    """
    gc.set_threshold(*_THRESHOLDS)
    atexit.register(gc.freeze)


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect no garbage while many objects are made that stay: each collection would traverse all of them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def keep_freed_memory() -> None:
    """Let this process keep up to 1 GB of freed memory for what it needs next, where its C library is GNU's.

    A training step takes and frees the same hundreds of megabytes each time. The library would give large blocks back
    to the system at once, and every 4 kB of the next ones cost a page fault: some 4 % of a step on a CPU. Blocks of
    256 MB and more still go back.
    """
    with suppress(AttributeError, OSError, TypeError):  # another library, without mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _LARGEST)
        mallopt(_TRIM_THRESHOLD, _FREE)


def release_memory() -> None:
    """Collect garbage and give freed memory back to the system: at the end of a piece of work, with more to come."""
    gc.collect()
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
