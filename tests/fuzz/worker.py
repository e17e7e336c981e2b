"""A process of its own for cases, which may crash, hang or take too much memory.

A first process imports everything and forks a second one, which runs the cases; it is forked anew, in milliseconds,
after one that killed it.
"""

from __future__ import annotations

import io
import os
import pickle
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import BinaryIO, Self

from places import PATHS

from fuzz.cases import Kind, SilentlyWrong, Verdict

SECONDS = 10.0  # of a core
MEMORY = (
    3 << 30
)  # bytes of address space, beyond what the imports take; each open writer of a store reserves 2**29
_WAIT = 6  # times as many seconds by the clock
_TOO_LONG = (signal.SIGPROF, signal.SIGALRM)
_CASES = 200  # in a process, before the next one is forked
_LENGTH = struct.Struct(">I")
_ENVIRONMENT = {
    "TQDM_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # the usual one reserves gigabytes
    "MALLOC_ARENA_MAX": "1",  # else glibc reserves 64 MB for each thread that Arrow begins
}


class Worker:
    """Runs cases; use it as a context manager.

    Args:
        seconds: of a core, after which a case is said to hang.
        memory: bytes that a case may take.
    """

    def __init__(self, *, seconds: float = SECONDS, memory: int = MEMORY) -> None:
        program = f"import sys; sys.path[:0] = {PATHS}; import fuzz.worker as w; w.serve()"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", program, str(seconds), str(memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | _ENVIRONMENT,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def run(self, kind: Kind, folder: Path, files: Mapping[str, bytes]) -> Verdict:
        """Let a kind's reader read a copy of `folder` in which some files have other bytes."""
        _send(self._process.stdin, (kind.name, str(folder), dict(files)))
        outcome, detail = _receive(self._process.stdout)
        return Verdict(outcome=outcome, detail=detail)


def _send(pipe: BinaryIO, message: object) -> None:
    data = pickle.dumps(message)
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


def _receive(pipe: BinaryIO) -> tuple:
    (length,) = _LENGTH.unpack(pipe.read(_LENGTH.size))
    return pickle.loads(pipe.read(length))


def serve() -> None:
    """Fork processes that run cases, until standard input is closed."""
    import torch._dynamo  # noqa: F401 (seconds, at the first use of an optimiser)

    from fuzz.kinds import KINDS

    seconds, memory = float(sys.argv[1]), int(sys.argv[2])
    requests, answers = os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)
    os.fsync = lambda _: None  # a case ends with its files
    while True:
        if not (child := os.fork()):
            _limit(memory)
            os._exit(_cases(KINDS, requests, answers, seconds=seconds))
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            hung = number in _TOO_LONG
            detail = f"over {seconds:g} s" if hung else f"ended by {signal.Signals(number).name}"
            _send(answers, ("hang" if hung else "crash", detail))
        elif os.WEXITSTATUS(status) == _END:
            return


_NEXT, _END = 0, 3


def _limit(memory: int) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _cases(kinds: Mapping[str, Kind], requests: BinaryIO, answers: BinaryIO, *, seconds: float) -> int:
    for number in _TOO_LONG:
        signal.signal(number, signal.SIG_DFL)  # ends the process inside a library, too
    for _ in range(_CASES):
        head = requests.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            return _END
        (length,), data = _LENGTH.unpack(head), b""
        while len(data) < length:
            data += requests.read(length - len(data))
        name, folder, files = pickle.loads(data)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, _WAIT * seconds)
        answer = judge(kinds[name], Path(folder), files)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(answers, answer)
    return _NEXT


def judge(kind: Kind, folder: Path, files: Mapping[str, bytes]) -> tuple[str, str]:
    """Return how a case ends and what was said; what is printed is held to what a terminal may be sent."""
    from polypool.infra.process.command import command

    scratch = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", write_through=True)  # as Python's own
    skipped, code = [0], 0
    try:
        case = shutil.copytree(folder, scratch / "case", symlinks=True)
        for name, data in files.items():
            (case / name).write_bytes(data)
        os.chdir(case)
        with redirect_stdout(out), redirect_stderr(err):
            command(lambda: skipped.append(kind.read(case)))()
    except SystemExit as stop:
        code = stop.code or 0
    except SilentlyWrong as error:
        return "silently wrong", str(error)
    except BaseException:
        return "traceback", traceback.format_exc()
    finally:
        os.chdir("/")
        shutil.rmtree(scratch, ignore_errors=True)
    said = (out.buffer.getvalue() + err.buffer.getvalue()).decode()
    if hostile := {char for char in said if not char.isprintable() and char not in "\n\r\t"}:
        return "silently wrong", f"printed the characters {sorted(hostile)!r} to the terminal: {said!r:.500}"
    if code == 2 and said.strip():
        return "message", said
    if code not in (0, 1):
        return "traceback", f"exit code {code} without a word"
    return ("counted" if code or skipped[-1] else "accepted"), said
