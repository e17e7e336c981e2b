"""The system's page cache: drop files from it, and count what is then read from disks."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from polypool.infra.errors import InputError

_COUNTS = Path("/proc/self/io")
_LEFT = 0.01  # of a file may stay: pages that something else looks at just now


def forget(paths: Iterable[Path]) -> None:
    """Have the system drop what it has of these files in memory, and see that it did.

    Raises:
        InputError: it cannot be told to, or the files stay, as those of a file system in memory do.
    """
    if not hasattr(os, "posix_fadvise"):
        raise InputError("this system does not drop files from memory when asked; run it on Linux")
    gc.collect()  # what is mapped stays
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())  # what is not written yet stays, too
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if (left := resident(path)) > _LEFT:
            raise InputError(
                f"{path}: {left:.0%} of it stays in memory; have TMPDIR name a folder that is on a disk"
            )


def resident(path: Path) -> float:
    """Return which share of a file's pages the system has in memory; of none, none."""
    if path.stat().st_size == 0:
        return 0.0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        byte_N = np.frombuffer(mapping, np.uint8)
        state_P = np.zeros(-(-len(byte_N) // mmap.PAGESIZE), np.uint8)
        start, state = (ctypes.c_void_p(x.__array_interface__["data"][0]) for x in (byte_N, state_P))
        failed = ctypes.CDLL(None).mincore(start, ctypes.c_size_t(len(byte_N)), state)
        del byte_N  # a mapping that has views cannot be closed
    if failed:
        raise InputError(f"{path}: the system does not say what of it is in memory")
    return float((state_P & 1).mean())


def read_from_disks() -> int:
    """Return how many bytes this process has had read from disks.

    Raises:
        InputError: the system does not count them.
    """
    try:
        fields = dict(line.split(": ") for line in _COUNTS.read_text().splitlines())
    except OSError as error:
        raise InputError(
            f"what is read from disks is counted in {_COUNTS}: {error}; run it on Linux"
        ) from error
    return int(fields["read_bytes"])
