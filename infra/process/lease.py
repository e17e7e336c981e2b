"""One process at a time writes a folder, and who comes second is told who is at work.

A lease is a file that its holder keeps locked, so that it is free when the holder is gone, however it ended. The file
says who that is, and is touched every few seconds: other machines may not see the lock, and some file systems know
none; there, a lease that was touched lately is held.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from infra.errors import InputError
from infra.fields import from_plain
from infra.files import make_folder
from infra.process.locking import Locked, open_locked, somebody_has
from infra.process.stopping import same_command

NAME = ".lock"
"""Of a lease in the folder that it is on."""
BEAT_SECONDS, STALE_SECONDS = 5.0, 60.0
"""How often a lease is touched, and for how long after that it counts as held where no lock can tell."""
_MOST_BYTES, _MOST_TEXT = 1 << 16, 300
_guard = threading.RLock()
_held: dict[Path, Lease] = {}
_beating: list[threading.Thread] = []


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who holds a lease.

    Attributes:
        host: the name of its machine.
        boot: what tells machines apart that have one name, and what a machine was before it was started anew.
        process: its number there.
        command: what it carries out.
        since: when it began, in seconds since 1970.
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
            boot=boot(),
            process=os.getpid(),
            command=same_command()[:_MOST_TEXT],
            since=time.time(),
        )

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.since))
        return f"process {self.process} on {self.host} since {since}: {self.command}"


class HeldError(InputError):
    """Somebody else is at work."""


class Lease:
    """A lease that this process holds; `take` gives it, and the thread that has it may take it again.

    Args:
        path: its file.
        locked: that file.
    """

    def __init__(self, path: Path, locked: Locked) -> None:
        self.path, self._locked, self._times = path, locked, 1
        self._process, self._thread = os.getpid(), threading.get_ident()

    @classmethod
    def take(cls, path: Path, *, of: str) -> Lease:
        """Take a lease, without waiting.

        Args:
            path: its file; its folder is made where it is not there.
            of: what it is on, with which the message begins.

        Raises:
            HeldError: somebody else has it; the message says who.
            InputError: the file cannot be written.
        """
        path = make_folder(path.parent).resolve() / path.name
        with _guard:
            mine = _held.get(path)
            if mine is not None and mine._process == os.getpid() and mine._thread == threading.get_ident():
                mine._times += 1
                return mine
            try:
                _held[path] = lease = cls(path, _open(path, of))
            except OSError as error:
                raise InputError(f"{path}: cannot be written: {error.strerror}") from error
            _beat()
            return lease

    def release(self) -> None:
        """Give it back, as often as it was taken; once is enough for one that this thread has not got any more."""
        with _guard:
            self._times -= 1
            if self._times or self._process != os.getpid() or _held.get(self.path) is not self:
                return
            del _held[self.path]
            with suppress(OSError):  # it may be gone, or its disk be read-only now
                self.path.unlink()
            os.close(self._locked.handle)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def touch(self) -> None:
        """Show that its holder lives."""
        with suppress(OSError):
            os.utime(self._locked.handle)


def take_folder(folder: str | Path) -> Lease:
    """Take the lease on a folder that is written, which is made where it is not there.

    Raises:
        HeldError: somebody else writes there.
        InputError: nothing can be written there.
    """
    return Lease.take(make_folder(folder) / NAME, of=f"{folder}: another command writes to this folder")


def forget(path: Path, process: int) -> None:
    """Free a lease of a dead child of this process, which may be held for a while where no lock can tell."""
    with suppress(OSError):
        holder = _read(path.read_bytes())
        if (holder.process, holder.host, holder.boot) == (process, socket.gethostname(), boot()):
            path.unlink()


def holder_of(path: Path) -> Holder | None:
    """Return who holds a lease, and None where nobody does; nothing is written."""
    try:
        locked, data, age = somebody_has(path), path.read_bytes(), time.time() - path.stat().st_mtime
    except OSError:
        return None
    holder = _read(data)
    return holder if locked or _lives_elsewhere(holder, age, sure=locked is not None) else None


def _open(path: Path, of: str) -> Locked:
    """Open the file of a lease, locked and with this process as its holder.

    Raises:
        HeldError: somebody else has it.
        OSError: it cannot be written.
    """
    locked = open_locked(path)
    if locked is None:
        raise refusal(of, _read(path.read_bytes()))
    handle = locked.handle
    try:
        holder, age = _read(os.pread(handle, _MOST_BYTES, 0)), time.time() - os.fstat(handle).st_mtime
        if _lives_elsewhere(holder, age, sure=locked.sure):
            raise refusal(of, holder, age)
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(asdict(Holder.this())).encode(), 0)
    except BaseException:
        os.close(handle)
        raise
    return locked


def _lives_elsewhere(holder: Holder, age: float, *, sure: bool) -> bool:
    """Whether a lease that nobody has locked, as far as we see, is held, by when it was touched."""
    known = holder.process and abs(age) < STALE_SECONDS
    return bool(known and (holder.boot != boot() or not sure))


def refusal(of: str, holder: Holder, age: float | None = None, *, stale: float = STALE_SECONDS) -> HeldError:
    """Return the error for who comes second.

    Args:
        of: what the lease is on, with which the message begins.
        holder: who has it; process 0 where that is not known.
        age: seconds since the holder was seen, where nothing else says that it lives.
        stale: after how many it counts as dead.
    """
    who = str(holder) if holder.process else "it is not known which"
    seen = "" if age is None else f", last seen {age:.0f} seconds ago; if it is dead, {stale:.0f} free it"
    return HeldError(f"{of} ({who}{seen}); wait for its end, or end it first")


def _read(data: bytes) -> Holder:
    """Return the holder that a lease names; process 0 where it names none."""
    try:
        return from_plain(Holder, json.loads(data))
    except (ValueError, RecursionError):
        return Holder(host="", boot="", process=0, command="", since=0.0)


def _beat() -> None:
    """Touch what this process holds, from now on."""
    if _beating and _beating[0].is_alive():
        return

    def beat() -> None:
        while True:
            time.sleep(BEAT_SECONDS)
            for lease in list(_held.values()):
                lease.touch()

    _beating[:] = [threading.Thread(target=beat, name="leases", daemon=True)]
    _beating[0].start()


@cache
def boot() -> str:
    """Return what tells this machine, since it was started, from others."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname()
