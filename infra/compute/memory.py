"""What a process that computes the same again and again asks of the system's memory."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
_LARGEST, _FREE = 1 << 28, 1 << 30


def keep_freed_memory() -> None:
    """Let this process keep up to 1 GB of freed memory for what it needs next, where its C library is GNU's.

    A training step takes and frees the same hundreds of megabytes each time. The library would give large blocks back
    to the system at once, and every 4 kB of the next ones cost a page fault: some 4 % of a step on a CPU. Blocks of
    256 MB and more still go back.
    """
    with suppress(AttributeError, OSError, TypeError):  # another library, which knows no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _LARGEST)
        mallopt(_TRIM_THRESHOLD, _FREE)
