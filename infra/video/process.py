"""The process that decodes videos for another: requests come in on standard input, frames go out on standard output.

A request is a line of JSON, `{"path": str, "every": int, "at_most": int | null}`. The answer is a header (`HEADER`) and
as many bytes as it says, again and again: frames, then the end of the video, or why there are no more. The first header
says that the process is ready. It has bounds of its own (`infra.video.limits`), for what it reads may have been made to
harm.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import struct
import sys
from typing import BinaryIO

import numpy as np

from infra.video.containers import BadVideo
from infra.video.decoding import frames
from infra.video.limits import MEMORY, allow_seconds, confine

HEADER = struct.Struct("<iiqd")
"""Height and width of a frame, the bytes that follow, and its second; or one of the marks below, 0, the bytes, 0."""
READY, END, BAD = -1, -2, -3
_SPARE = 5.0


def serve(
    requests: BinaryIO, answers: BinaryIO, *, decoder: str, timeout: float, memory: int = MEMORY
) -> None:
    """Answer requests until there are no more.

    The system ends this process where one frame takes longer than `timeout` seconds and a little, or one video as much
    processor time: who asked has killed it by then, or is no more.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    confine(memory=memory)

    def send(mark: int, width: int = 0, data: bytes | memoryview = b"", seconds: float = 0.0) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)  # the caller may take as long as it likes
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
                send(*x_HW3.shape[:2], memoryview(np.ascontiguousarray(x_HW3)).cast("B"), seconds)
                signal.setitimer(signal.ITIMER_REAL, timeout + _SPARE)
            send(END)
        except BadVideo as bad:
            send(BAD, data=str(bad).encode())


if __name__ == "__main__":
    # libraries may print what they like; the pipe is for frames
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for library in ("av", sys.argv[1]):  # which takes a while, and is no video's time
        importlib.import_module(library)
    serve(sys.stdin.buffer, pipe, decoder=sys.argv[1], timeout=float(sys.argv[2]))
