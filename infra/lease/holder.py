"""The holder of a lease, and the error for a second process."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from polypool.infra.errors import InputError
from polypool.infra.process.stopping import command_line

_MAX_COMMAND = 300  # characters


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
