"""A lease on a folder in object storage: a file that its holder rewrites every few seconds, and that expires.

Of two processes that take it at once, S3 lets one write (`infra.storage.conditional`). A holder that could not write
for too long notices at its next write, or before it writes a checkpoint (`refuse_lost`), that another process holds it.
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
from dataclasses import asdict, dataclass, replace

from polypool.infra.errors import InputError
from polypool.infra.lease.on_disk import UNKNOWN, HeldError, Holder, boot_id, keep_alive, parse
from polypool.infra.storage import conditional, remote
from polypool.infra.storage.conditional import ChangedError, Version
from polypool.infra.storage.places import Url

NAME = "lease.json"
"""The file of the lease on a folder, in that folder."""
BEAT_SECONDS, STALE_SECONDS = 15.0, 90.0
"""How often it is written, and how long after that it expires."""
_SETTLE_SECONDS = 2.0  # in which two processes that take it at once without conditions see each other


@dataclass(frozen=True, kw_only=True)
class _Record:
    """The content of the file.

    Attributes:
        token: identifies the lease; empty after it was given back.
        holder: the process that wrote it.
        processes: the name space of its process number, as each container has its own.
    """

    token: str
    holder: Holder
    processes: str


class BucketLease:
    """A lease in object storage that this process holds.

    Attributes:
        folder: what it is on.
        token: identifies it.
        found: whether the file existed before.
        lost: whether another process has taken it since.
    """

    def __init__(self, folder: Url, of: str) -> None:
        self.folder, self.token, self.found, self.lost = folder, secrets.token_hex(8), False, False
        self._url, self._of, self._sure = folder / NAME, of, False
        self._version: Version | None = None
        record = _Record(token=self.token, holder=Holder.this(), processes=_process_namespace())
        self._held, self._free = (
            json.dumps(asdict(each)).encode() for each in (record, replace(record, token=""))
        )
        self._released, self._writing = threading.Event(), threading.Lock()

    @classmethod
    def take(cls, folder: Url, *, of: str) -> BucketLease:
        """Take the lease on a folder, without waiting.

        Args:
            folder: its URL.
            of: what the lease is on, with which the message begins.

        Raises:
            HeldError: another process holds it.
            InputError: the storage does not answer, or refuses.
        """
        lease = cls(folder, of)
        there = conditional.read(lease._url)
        lease.found = there is not None
        if there and _is_held(there):
            raise _held_error(of, there)
        try:
            lease._version = conditional.write(lease._url, lease._held, over=there)
        except ChangedError:
            raise _held_error(of, conditional.read(lease._url)) from None
        lease._sure = conditional.enforced(lease._url, lease._held)
        if not lease._sure:
            print(
                f"note: the storage of {folder} ignores conditions on writes: whether another process works there is "
                "judged by its signs of life alone",
                file=sys.stderr,
            )
            time.sleep(_SETTLE_SECONDS)
        refuse_lost(folder, lease.token, of=of)
        keep_alive(lease._beat, seconds=BEAT_SECONDS, until=lease._released)
        return lease

    def release(self) -> None:
        """Give it back."""
        with self._writing, suppress(InputError, ChangedError):  # it expires
            if not self._released.is_set():
                self._released.set()
                self._write(self._free)

    def withdraw(self) -> None:
        """Give it back, and delete its file unless that existed before."""
        self.release()
        if not self.found:
            remote.delete(self._url)

    def __enter__(self) -> BucketLease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _beat(self) -> None:
        with self._writing, suppress(InputError):  # the storage may answer the next time
            if self._released.is_set():
                return
            try:
                self._write(self._held)
            except ChangedError:
                self.lost = True
                self._released.set()
                print(f"note: {self._of} now, as this one could not be seen at work", file=sys.stderr)

    def _write(self, data: bytes) -> None:
        there = self._version
        if not self._sure and (there := conditional.read(self._url)) and _record(there).token != self.token:
            raise ChangedError
        self._version = conditional.write(self._url, data, over=there)


def refuse_lost(folder: Url, token: str, *, of: str) -> None:
    """Refuse to go on without a lease that was taken.

    Args:
        folder: what it is on.
        token: identifies it.
        of: begins the message.

    Raises:
        HeldError: another process holds it by now.
        InputError: the storage does not answer, or refuses.
    """
    there = conditional.read(folder / NAME, attempts=remote.PATIENT)
    if _record(there).token != token:
        raise _held_error(of, there)


def holder_in_bucket(folder: Url) -> Holder | None:
    """Return the holder of the lease on a folder; None where it is free. Nothing is written.

    Raises:
        InputError: the storage does not answer, or refuses.
    """
    there = conditional.read(folder / NAME)
    return _record(there).holder if there and _is_held(there) else None


def _held_error(of: str, there: Version | None) -> HeldError:
    return HeldError.by(_record(there).holder, of, there.age if there else 0.0, stale=STALE_SECONDS)


def _is_held(there: Version) -> bool:
    record = _record(there)
    released = not record.token and record.holder.process
    return not (there.age >= STALE_SECONDS or released or _died_here(record))


def _died_here(record: _Record) -> bool:
    """Whether the holder was a process of this machine that has ended."""
    holder, here = record.holder, (socket.gethostname(), boot_id(), _process_namespace())
    if (holder.host, holder.boot, record.processes) != here or not record.processes:
        return False
    try:
        os.kill(holder.process, 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return False


def _record(there: Version | None) -> _Record:
    """Return the content of the file; process 0 where there is none or it is damaged."""
    return parse(
        _Record, there.data if there else b"", unknown=_Record(token="", holder=UNKNOWN, processes="")
    )


def _process_namespace() -> str:
    """Return what identifies this machine's name space of process numbers; empty where that is unknown."""
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""
