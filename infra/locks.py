"""Locks on folders and files, by filelock; a lock ends with its process, however that ends."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from polypool.infra.errors import InputError
from polypool.infra.files import make_folder
from polypool.infra.process.stopping import command_line

NAME = ".lock"
"""The lock file of a folder, in that folder; it names its holder."""
_SECONDS = 0.2  # longer than `holder_of` holds a lock to look at it


class HeldError(InputError):
    """Another process holds the lock."""


class Lock:
    """A lock that this process holds until `release`; the thread that has it may take it again, and alone releases it.

    Args:
        path: the lock file; folders are made where necessary.
        of: what it locks, with which the message begins.

    Raises:
        HeldError: another process or thread holds it.
        InputError: the file cannot be written.
    """

    def __init__(self, path: Path, *, of: str) -> None:
        self.path = make_folder(path.parent).resolve() / path.name
        self._lock = FileLock(self.path, is_singleton=True)
        try:
            self._lock.acquire(timeout=_SECONDS)
            if self._lock.lock_counter == 1:
                self.path.write_text(f"process {os.getpid()} on {socket.gethostname()}: {command_line()}")
        except Timeout:
            raise HeldError(f"{of} ({holder_of(self.path)}); wait for its end, or end it first") from None
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror}") from error

    def release(self) -> None:
        """Release it, once for each time that it was taken; more often does nothing."""
        if self._lock.lock_counter == 1:
            with suppress(OSError):  # the file may be gone
                self.path.unlink()
        self._lock.release()

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def lock_folder(folder: str | Path) -> Lock:
    """Lock a folder to write to, which is made where necessary.

    Raises:
        HeldError: another process or thread writes there.
        InputError: nothing can be written there.
    """
    return Lock(Path(folder) / NAME, of=f"{folder}: another command writes to this folder")


def holder_of(path: Path) -> str:
    """Return the process that holds a lock, such as `process 7 on host: polypool train`; empty where it is free."""
    if not path.is_file():
        return ""
    try:
        with FileLock(path, timeout=0):
            return ""
    except (Timeout, OSError):
        with suppress(OSError):
            return path.read_text() or "an unknown process"
    return ""
