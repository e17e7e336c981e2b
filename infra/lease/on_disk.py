"""A lease on a folder: a file that its holder keeps locked, so that the lease ends with its process, however it ends.

The file names the holder and is touched every few seconds: other machines may not see the lock, and some file systems
have none; there, the lease expires when it has not been touched for a while.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from polypool.infra.errors import InputError
from polypool.infra.fields import from_plain
from polypool.infra.files import make_folder
from polypool.infra.process.locking import Locked, is_locked, open_locked
from polypool.infra.process.stopping import command_line

T = TypeVar("T")

NAME = ".lock"
"""The file of the lease on a folder, in that folder."""
BEAT_SECONDS, STALE_SECONDS = 5.0, 60.0
"""How often a lease is touched, and after how long without a lock it expires."""
_MAX_BYTES = 1 << 16
_MAX_COMMAND = 300  # characters
_guard = threading.RLock()
_held: dict[Path, DiskLease] = {}


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process that holds a lease.

    Attributes:
        host: the name of its machine.
        boot: identifies the machine, since it was started, among others of the same name.
        process: its number there; 0 where the lease does not name its holder.
        command: its command line.
        since: when it took the lease, in seconds since 1970.
    """

    host: str
    boot: str
    process: int
    command: str
    since: float

    @classmethod
    def this(cls) -> Holder:
        """Return this process."""
        return cls(
            host=socket.gethostname(),
            boot=boot_id(),
            process=os.getpid(),
            command=command_line()[:_MAX_COMMAND],
            since=time.time(),
        )

    def __str__(self) -> str:
        if not self.process:
            return "it is not known which"
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.since))
        return f"process {self.process} on {self.host} since {since}: {self.command}"


UNKNOWN = Holder(host="", boot="", process=0, command="", since=0.0)


class HeldError(InputError):
    """Another process holds the lease."""

    @classmethod
    def by(cls, holder: Holder, of: str, age: float | None = None, *, stale: float) -> HeldError:
        """Return the error for a second process.

        Args:
            holder: of the lease.
            of: what the lease is on, with which the message begins.
            age: seconds since the last sign of life, where nothing else shows that the holder lives.
            stale: seconds after which the lease expires.
        """
        seen = "" if age is None else f", last seen {age:.0f} seconds ago; if it is dead, {stale:.0f} free it"
        return cls(f"{of} ({holder}{seen}); wait for its end, or end it first")


@cache
def boot_id() -> str:
    """Return what identifies this machine since it was started."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname()


def parse(kind: type[T], data: bytes, *, unknown: T) -> T:
    """Return the record in the file of a lease; `unknown` where it is damaged, or empty as it is being written."""
    try:
        return from_plain(kind, json.loads(data))
    except (ValueError, RecursionError):
        return unknown


def keep_alive(touch: Callable[[], None], *, seconds: float, until: threading.Event) -> None:
    """Give a sign of life every so many seconds, in a thread, until an event."""

    def beat() -> None:
        while not until.wait(seconds):
            touch()

    threading.Thread(target=beat, name="lease", daemon=True).start()


class DiskLease:
    """A lease that this process holds; the thread that has it may take it again."""

    def __init__(self, path: Path, locked: Locked) -> None:
        self.path, self._locked, self._times = path, locked, 1
        self._released = threading.Event()
        self._process, self._thread = os.getpid(), threading.get_ident()

    @classmethod
    def take(cls, path: Path, *, of: str) -> DiskLease:
        """Take a lease, without waiting.

        Args:
            path: its file; folders are made where necessary.
            of: what it is on, with which the message begins.

        Raises:
            HeldError: another process or thread holds it.
            InputError: the file cannot be written.
        """
        path = make_folder(path.parent).resolve() / path.name
        with _guard:
            mine = _held.get(path)
            if mine is not None and (mine._process, mine._thread) == (os.getpid(), threading.get_ident()):
                mine._times += 1
                return mine
            try:
                _held[path] = lease = cls(path, _open(path, of))
            except OSError as error:
                raise InputError(f"{path}: cannot be written: {error.strerror}") from error
            keep_alive(lease.touch, seconds=BEAT_SECONDS, until=lease._released)
            return lease

    def release(self) -> None:
        """Give it back, once for each time that it was taken; more often does nothing."""
        with _guard:
            self._times -= 1
            if self._times or self._process != os.getpid() or _held.get(self.path) is not self:
                return
            del _held[self.path]
            self._released.set()
            with suppress(OSError):  # it may be gone, or its disk be read-only now
                self.path.unlink()
            os.close(self._locked.handle)

    def touch(self) -> None:
        """Give a sign of life."""
        with suppress(OSError):
            os.utime(self._locked.handle)

    def __enter__(self) -> DiskLease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def lease_folder(folder: str | Path) -> DiskLease:
    """Take the lease on a folder to write to, which is made where necessary.

    Raises:
        HeldError: another process or thread writes there.
        InputError: nothing can be written there.
    """
    return DiskLease.take(make_folder(folder) / NAME, of=f"{folder}: another command writes to this folder")


def free_of_dead(path: Path, process: int) -> None:
    """Remove the lease of a child of this process that is dead, which where there are no locks would have to expire."""
    with suppress(OSError):
        holder = parse(Holder, path.read_bytes(), unknown=UNKNOWN)
        if (holder.process, holder.host, holder.boot) == (process, socket.gethostname(), boot_id()):
            path.unlink()


def holder_of(path: Path) -> Holder | None:
    """Return the holder of a lease; None where it is free. Nothing is written."""
    try:
        locked, data, age = is_locked(path), path.read_bytes(), time.time() - path.stat().st_mtime
    except OSError:
        return None
    holder = parse(Holder, data, unknown=UNKNOWN)
    return holder if locked or _alive_unlocked(holder, age, sure=locked is not None) else None


def _open(path: Path, of: str) -> Locked:
    """Open the file of a lease, lock it, and write this process into it as the holder."""
    locked = open_locked(path)
    if locked is None:
        raise HeldError.by(parse(Holder, path.read_bytes(), unknown=UNKNOWN), of, stale=STALE_SECONDS)
    handle = locked.handle
    try:
        holder, age = (
            parse(Holder, os.pread(handle, _MAX_BYTES, 0), unknown=UNKNOWN),
            time.time() - os.fstat(handle).st_mtime,
        )
        if _alive_unlocked(holder, age, sure=locked.sure):
            raise HeldError.by(holder, of, age, stale=STALE_SECONDS)
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(asdict(Holder.this())).encode(), 0)
    except BaseException:
        os.close(handle)
        raise
    return locked


def _alive_unlocked(holder: Holder, age: float, *, sure: bool) -> bool:
    """Whether the holder of a lease that appears to be unlocked lives, by its last sign of life.

    Args:
        holder: who wrote the file.
        age: seconds since it was touched.
        sure: whether the file system has locks, which this machine's processes then hold.
    """
    return bool(holder.process) and abs(age) < STALE_SECONDS and (holder.boot != boot_id() or not sure)
