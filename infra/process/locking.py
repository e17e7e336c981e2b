"""Files that one process at a time locks (`flock`); a lock ends with its process, however that ends."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}
_GLANCE = 0.05  # seconds; longer than `is_locked` holds its shared lock


@dataclass(frozen=True, kw_only=True)
class Locked:
    """A file that this process has locked.

    Attributes:
        handle: its descriptor; closing it unlocks the file.
        sure: whether the file system has locks; where it has none, others may hold it as well.
    """

    handle: int
    sure: bool


def open_locked(path: Path) -> Locked | None:
    """Open a file for reading and writing, created where necessary, and lock it; None where it is locked already.

    Raises:
        OSError: it cannot be opened.
    """
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            sure = _lock(handle, path)
            if sure is not None and _is_at(handle, path):
                return Locked(handle=handle, sure=sure)
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        if sure is None:
            return None


def is_locked(path: Path) -> bool | None:
    """Whether a process has a file locked; None where the file system has no locks.

    Raises:
        OSError: there is no such file, or it may not be read.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    finally:
        os.close(handle)
    return False


def _lock(handle: int, path: Path) -> bool | None:
    """Lock an open file: True; None where another process has, False where the file system has no locks."""
    for attempt in range(2):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if not attempt:
                time.sleep(_GLANCE)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            _warn_once(path.parent, error.strerror)
            return False
    return None


def _is_at(handle: int, path: Path) -> bool:
    """Whether an open file still has its name: the process that locked it before may have removed or renamed it."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


@cache
def _warn_once(folder: Path, why: str | None) -> None:
    print(
        f"note: the file system of {folder} has no locks ({why}): whether another process writes there is judged by "
        "its signs of life alone",
        file=sys.stderr,
    )
