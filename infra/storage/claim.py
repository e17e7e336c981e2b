"""One process at a time, of all machines, writes a folder in object storage: a lease without locks.

It is a file that says who has it, and that its holder writes again every few seconds; one that nobody has written for
a while is free. Of two who take it at once S3 lets one (`infra.storage.conditional`). A holder that could not write
for longer than that finds out at its next write, or before it writes what counts (`refuse_lost`), that it is another's.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Self

from infra.errors import InputError
from infra.fields import from_plain
from infra.process.lease import Holder, boot, refusal
from infra.storage import conditional, remote
from infra.storage.conditional import ChangedError, Version
from infra.storage.places import Url

NAME = "lease.json"
"""Of the file in the folder that it is on."""
BEAT_SECONDS, STALE_SECONDS = 15.0, 90.0
"""How often it is written, and for how long after that it counts as held."""
_SETTLES = 2.0  # seconds in which two who take it at once without conditions come to see each other


@dataclass(frozen=True, kw_only=True)
class _Written:
    """What the file says.

    Attributes:
        token: of who holds it; empty where it was given back.
        holder: who that is.
        processes: in which space of numbers its process has one, as containers of a machine have their own.
    """

    token: str
    holder: Holder
    processes: str


class Claim:
    """A lease in object storage that this process holds; `take` gives it.

    Attributes:
        folder: that it is on.
        token: what its holder is known by.
        found: whether somebody had it before.
        lost: whether it is another's by now.
    """

    def __init__(self, url: Url, of: str) -> None:
        self.token, self.found, self.lost = secrets.token_hex(8), False, False
        self.folder, self._url, self._of = url, url / NAME, of
        written = _Written(token=self.token, holder=Holder.this(), processes=_processes())
        self._mine = json.dumps(asdict(written)).encode()
        self._free = json.dumps(asdict(written) | {"token": ""}).encode()
        self._over, self._writing = threading.Event(), threading.Lock()

    @classmethod
    def take(cls, url: Url, *, of: str) -> Self:
        """Take the lease on a folder, without waiting.

        Args:
            url: of the folder.
            of: what it is on, with which the message begins.

        Raises:
            HeldError: somebody else has it; the message says who.
            InputError: the storage does not answer, or refuses.
        """
        claim = cls(url, of)
        there = conditional.read(claim._url)
        claim.found = there is not None
        if there and _held(there):
            raise claim._refusal(there)
        try:
            claim._version = conditional.write(claim._url, claim._mine, over=there)
        except ChangedError:
            raise claim._refusal(conditional.read(claim._url)) from None
        claim._sure = conditional.heeded(claim._url, claim._mine)
        if not claim._sure:
            print(
                f"note: the storage of {url} heeds no conditions on what is written: whether somebody else is at work "
                "there is judged by signs of life alone",
                file=sys.stderr,
            )
            time.sleep(_SETTLES)
        refuse_lost(url, claim.token, of=of)
        threading.Thread(target=claim._beat, name="claim", daemon=True).start()
        return claim

    def release(self) -> None:
        """Give it back."""
        with self._writing, suppress(InputError, ChangedError):  # it is free after a while
            if not (self.lost or self._over.is_set()):
                self._over.set()
                self._write(self._free)

    def withdraw(self) -> None:
        """Leave it as it was found: give it back, or delete what nobody had before."""
        self.release()
        if not self.found:
            remote.delete(self._url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _beat(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            with self._writing, suppress(InputError):  # it may answer the next time
                try:
                    if not self._over.is_set():
                        self._write(self._mine)
                except ChangedError:
                    self.lost = True
                    print(f"note: {self._of} now, as this one could not be seen at work", file=sys.stderr)
                    return

    def _write(self, data: bytes) -> None:
        there = self._version
        if not self._sure and (there := conditional.read(self._url)) and _read(there).token != self.token:
            raise ChangedError
        self._version = conditional.write(self._url, data, over=there)

    def _refusal(self, there: Version | None) -> InputError:
        holder = _read(there).holder if there else _NOBODY.holder
        return refusal(self._of, holder, there.age if there else 0.0, stale=STALE_SECONDS)


def refuse_lost(url: Url, token: str, *, of: str) -> None:
    """Refuse to go on where a lease is somebody else's by now.

    Args:
        url: of the folder.
        token: of the lease that was taken.
        of: what it is on.

    Raises:
        HeldError: it is.
        InputError: the storage does not answer, or refuses.
    """
    there = conditional.read(url / NAME, attempts=remote.PATIENT)
    if there is None or _read(there).token != token:
        holder = _read(there).holder if there else _NOBODY.holder
        raise refusal(of, holder, there.age if there else 0.0, stale=STALE_SECONDS)


def holder_at(url: Url) -> Holder | None:
    """Return who holds the lease on a folder; None where nobody does. Nothing is written.

    Raises:
        InputError: the storage does not answer, or refuses.
    """
    there = conditional.read(url / NAME)
    return _read(there).holder if there and _held(there) else None


def _held(there: Version) -> bool:
    written = _read(there)
    if there.age >= STALE_SECONDS or (not written.token and written.holder.process):
        return False
    return not _dead_here(written)


def _dead_here(written: _Written) -> bool:
    """Whether a holder was a process of this machine that is no more."""
    holder, here = written.holder, (socket.gethostname(), boot(), _processes())
    if (holder.host, holder.boot, written.processes) != here or not written.processes:
        return False
    try:
        os.kill(holder.process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _read(there: Version) -> _Written:
    """Return what the file of a lease says; process 0 where it says nothing."""
    try:
        return from_plain(_Written, json.loads(there.data))
    except (ValueError, RecursionError):
        return _NOBODY


_NOBODY = _Written(token="", holder=Holder(host="", boot="", process=0, command="", since=0.0), processes="")


def _processes() -> str:
    """Return what tells this machine's space of process numbers from others; empty where there is no telling."""
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""
