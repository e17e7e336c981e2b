"""The process that decodes videos for another: requests on standard input, frames on standard output.

A request is a line of JSON, `{"path": str, "every": int, "at_most": int | null}`. The answer is a series of headers
(`HEADER`), each followed by its bytes: frames, then the end of the video or why there are no more. The first header
says that the process is ready. Its memory, time and rights are bounded, as a video file may be an attack.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import math
import os
import resource
import signal
import struct
import sys
from contextlib import suppress
from typing import BinaryIO

import numpy as np

from polypool.infra.video.containers import BadVideo
from polypool.infra.video.decoding import frames

HEADER = struct.Struct("<iiqd")
"""Height and width of a frame, the bytes that follow, and its second; or one of the marks below, 0, the bytes, 0."""
READY, END, BAD = -1, -2, -3
MEMORY = 4 << 30
"""Bytes of address space. The libraries take half a GiB of it; seventeen frames of 8K in 10 bits fit into the rest."""
_SPARE = 5.0
_NO_NEW_PRIVILEGES = 38  # PR_SET_NO_NEW_PRIVS of prctl(2)


def serve(
    requests: BinaryIO, answers: BinaryIO, *, decoder: str, timeout: float, memory: int = MEMORY
) -> None:
    """Answer requests until there are no more.

    The system ends this process where one frame takes longer than `timeout` seconds and a little, or one video as much
    processor time: by then the parent has killed it, or has ended.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    confine(memory=memory)

    def send(mark: int, width: int = 0, data: bytes | memoryview = b"", seconds: float = 0.0) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)  # the parent may take as long as it likes
        answers.write(HEADER.pack(mark, width, len(data), seconds))
        answers.write(data)
        answers.flush()

    send(READY)
    for line in requests:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, timeout + _SPARE)
        allow_seconds(timeout)
        try:
            path = request.pop("path")
            for x_HW3, seconds in frames(path, **request, decoder=decoder):
                height, width, _ = x_HW3.shape
                send(height, width, np.ascontiguousarray(x_HW3).data.cast("B"), seconds)
                signal.setitimer(signal.ITIMER_REAL, timeout + _SPARE)
            send(END)
        except BadVideo as bad:
            send(BAD, data=str(bad).encode())


def confine(*, memory: int) -> None:
    """Bound the address space of this process and its children to `memory` bytes, and renounce new privileges."""
    for which, value in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0)):
        with suppress(ValueError, OSError):  # a system without this bound
            value = _at_most(which, value)
            resource.setrlimit(which, (value, value))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)


def allow_seconds(seconds: float) -> None:
    """Have the system end this process (SIGXCPU) after some seconds more of processor time, rounded up."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = _at_most(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime + seconds))
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _at_most(which: int, value: int) -> int:
    """Return a limit that may be set: `value`, or the hard limit where that is lower."""
    _, hard = resource.getrlimit(which)
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


if __name__ == "__main__":
    # libraries may print what they like; the pipe is for frames
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for library in ("av", sys.argv[1]):  # which takes a while, and counts for no video
        importlib.import_module(library)
    serve(sys.stdin.buffer, pipe, decoder=sys.argv[1], timeout=float(sys.argv[2]))
