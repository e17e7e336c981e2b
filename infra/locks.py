"""Locks on folders and files, by filelock; a lock is released when its process ends or dies."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from polypool.infra.errors import InputError
from polypool.infra.files import make_folder
from polypool.infra.process.stopping import invocation

NAME = ".lock"
"""Name of a folder's lock file, which records its holder."""
_SECONDS = 0.2  # longer than `holder_of` holds a lock to read it


class HeldError(InputError):
    """Another process holds the lock."""


class Lock:
    """A lock held until `release`; re-entrant in the acquiring thread, which alone can release it.

    Args:
        path: the lock file; its folders are created if necessary.
        of: the locked resource, a prefix of messages.
        seconds: timeout, at least 0.2.

    Raises:
        HeldError: another process or thread holds it.
        InputError: the lock file cannot be written.
    """

    def __init__(self, path: Path, *, of: str, seconds: float = 0.0) -> None:
        self.path = make_folder(path.parent).resolve() / path.name
        self._lock = FileLock(self.path, is_singleton=True)
        try:
            self._lock.acquire(timeout=max(seconds, _SECONDS))
            if self._lock.lock_counter == 1:
                self.path.write_text(f"process {os.getpid()} on {socket.gethostname()}: {invocation()}")
        except Timeout:
            raise HeldError(f"{of} ({holder_of(self.path)}); wait until it ends, or stop it") from None
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror}") from error

    def release(self) -> None:
        """Release the lock once per acquisition; further calls do nothing."""
        if self._lock.lock_counter == 1:
            with suppress(OSError):  # the file may have been deleted
                self.path.unlink()
        self._lock.release()

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def lock_folder(folder: str | Path) -> Lock:
    """Lock a folder for writing; it is created if necessary.

    Raises:
        HeldError: another process or thread writes to it.
        InputError: the folder is not writable.
    """
    return Lock(Path(folder) / NAME, of=f"{folder}: another command writes to this folder")


def holder_of(path: Path) -> str:
    """Return the process that holds a lock, such as `process 7 on host: polypool train`; empty if it is free."""
    if not path.is_file():
        return ""
    try:
        with FileLock(path, timeout=0):
            return ""
    except (Timeout, OSError):
        with suppress(OSError):
            return path.read_text() or "an unknown process"
    return ""
