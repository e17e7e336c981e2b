"""Video reader that decodes in another process: a decoder that hangs or crashes costs one video, not the job.

Run as a program, this module is that process: requests on standard input, frames on standard output. A request is a
line of JSON, `{"path": str, "every": int, "at_most": int | null}`. The answer is a series of headers (`HEADER`), each
followed by its bytes: frames, then the end of the video or why there are no more. The first header says that the
process is ready. Its memory, time and rights are bounded, as a video file may be an attack.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib
import json
import math
import os
import resource
import selectors
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np

import polypool
from polypool.infra.video.containers import BadVideo, Frame
from polypool.infra.video.decoding import frames

_ROOT = Path(polypool.__file__).parents[1]
_SET_PIPE_SIZE, _PIPE = 1031, 1 << 20  # F_SETPIPE_SZ of fcntl(2) on Linux; bytes
_START_SECONDS = 120.0  # until the process must be ready; machines can be busy
HEADER = struct.Struct("<iiqd")
"""Height and width of a frame, the bytes that follow, and its second; or one of the marks below, 0, the bytes, 0."""
READY, END, BAD = -1, -2, -3
MEMORY = 4 << 30
"""Bytes of address space. The libraries take half a GiB of it; seventeen frames of 8K in 10 bits fit into the rest."""
_SPARE = 5.0
_NO_NEW_PRIVILEGES = 38  # PR_SET_NO_NEW_PRIVS of prctl(2)


class VideoReader:
    """Decodes videos one after another, in a process that is started when necessary.

    One thread may use it at a time, and it cannot be pickled: workers make their own.

    Args:
        decoder: `av` or `decord`, as `polypool.infra.video.decoding.choose_decoder` returns it.
        timeout: seconds of waiting for the frames of one video; the time between them does not count.
        program: started instead of this module, as in tests.
    """

    def __init__(self, *, decoder: str, timeout: float = 60.0, program: Sequence[str] | None = None) -> None:
        self.timeout = timeout
        module = ["-P", "-m", "polypool.infra.video.video_reader", decoder, str(timeout)]
        self._program = list(program or [sys.executable, *module])
        self._process: subprocess.Popen[bytes] | None = None

    def frames(
        self, path: str | Path, *, every: int = 1, at_most: int | None = None
    ) -> Generator[Frame, None, None]:
        """Yield frames of a video while they are decoded; see `polypool.infra.video.decoding.frames`.

        Raises:
            BadVideo: it has no (more) frames, they take too much time or memory, or the decoder crashed.
            RuntimeError: the process does not start.
        """
        complete = False
        try:
            process = self._running()
            request = {"path": str(path), "every": every, "at_most": at_most}
            left = self._send(process, json.dumps(request).encode() + b"\n")
            while True:
                (height, width, _, seconds), data, left = self._receive(process, left)
                if height in (END, BAD):
                    break
                yield Frame(np.frombuffer(data, np.uint8).reshape(height, width, 3), seconds)
            complete = True
        finally:
            if not complete:  # the rest must not be taken for the next video
                self.close()
        if height == BAD:
            raise BadVideo(data.decode())

    def close(self) -> None:
        """End the process, whatever it is doing."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # it may hang in the kernel, on a dead disk
            process.wait(5)
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self.close()  # it ended between two videos, and the next one is not to blame
        if self._process is None:
            paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
            self._process = subprocess.Popen(
                self._program,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            )
            with suppress(OSError):  # a pipe that cannot grow is only slower
                assert self._process.stdout is not None
                fcntl.fcntl(self._process.stdout, _SET_PIPE_SIZE, _PIPE)
            try:
                (mark, *_), *_ = self._receive(self._process, _START_SECONDS)
            except BadVideo as error:  # no video is at fault, and the next would fail as well
                raise RuntimeError(f"the process that decodes does not start: {error}") from error
            assert mark == READY
        return self._process

    def _send(self, process: subprocess.Popen[bytes], request: bytes) -> float:
        """Send a request, which is shorter than a pipe's buffer; return the seconds left for the answer."""
        assert process.stdin is not None
        try:
            process.stdin.write(request)
        except BrokenPipeError:
            raise BadVideo(self._ended(process)) from None
        return self.timeout

    def _receive(self, process: subprocess.Popen[bytes], left: float) -> tuple[tuple, bytearray, float]:
        """Return a header, the data that follow it, and the seconds left."""
        packed, left = self._read(process, HEADER.size, left)
        header = HEADER.unpack(packed)
        data, left = self._read(process, header[2], left)
        return header, data, left

    def _read(self, process: subprocess.Popen[bytes], size: int, left: float) -> tuple[bytearray, float]:
        """Return the next `size` bytes and the seconds left."""
        assert process.stdout is not None
        data, got = bytearray(size), 0
        view, until = memoryview(data), time.monotonic() + left
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while got < size:
                if not selector.select(max(0.0, until - time.monotonic())):
                    raise BadVideo(
                        f"decoding took too long; `extract --timeout` allows {self.timeout:g} seconds"
                    )
                read = os.readv(process.stdout.fileno(), [view[got:]])
                if not read:
                    raise BadVideo(self._ended(process))
                got += read
        return data, until - time.monotonic()

    def _ended(self, process: subprocess.Popen[bytes]) -> str:
        try:
            status = process.wait(5)
        except subprocess.TimeoutExpired:
            return "the decoder gave up"
        if status == -signal.SIGXCPU:
            return (
                f"decoding took too much processor time; `extract --timeout` allows {self.timeout:g} seconds"
            )
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return f"the decoder ended ({how})"

    def __enter__(self) -> VideoReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
