"""What the process that decodes may use: so much memory and processor time, and no more rights than it has."""

from __future__ import annotations

import ctypes
import math
import resource
import sys
from contextlib import suppress

MEMORY = 4 << 30
"""Bytes of address space. The libraries take half a GiB of it; seventeen frames of 8K in 10 bits fit into the rest."""
_NO_NEW_PRIVILEGES = 38  # PR_SET_NO_NEW_PRIVS of prctl(2)


def confine(*, memory: int) -> None:
    """Bound the memory of this process and whatever it starts, and give up new rights, for good.

    Args:
        memory: bytes of address space.
    """
    _lower(resource.RLIMIT_AS, memory)
    _lower(resource.RLIMIT_CORE, 0)  # a decoder that crashes leaves no gigabytes behind
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)


def allow_seconds(seconds: float) -> None:
    """Have the system end this process (SIGXCPU) after some seconds more of processor time, rounded up."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    wanted = math.ceil(used.ru_utime + used.ru_stime + seconds)
    resource.setrlimit(
        resource.RLIMIT_CPU, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most)
    )


def _lower(which: int, value: int) -> None:
    _, most = resource.getrlimit(which)
    value = value if most == resource.RLIM_INFINITY else min(value, most)
    with suppress(ValueError, OSError):  # some systems know no such bound
        resource.setrlimit(which, (value, value))
