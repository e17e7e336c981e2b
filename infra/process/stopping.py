"""Ending a command by a signal: Ctrl-C, SIGTERM, or SIGHUP when its terminal is closed.

The command prints one line to standard error with the command that resumes (not after SIGHUP), and exits with 128 plus
the signal's number, as shells do. While a command is being imported it exits immediately. Later the signal is raised as
`Stopped` in the main thread, so that resources are released; a second signal ends the process immediately.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
_received: list[int] = []
_hints: list[str] = []
_cleanups: list[Callable[[], None]] = []


class Stopped(KeyboardInterrupt):
    """A signal, or a requested stop of a part of the work.

    Libraries such as Ray may convert it to a plain KeyboardInterrupt: catch that.
    """


def set_handler(handler: Callable[[int, FrameType | None], None]) -> None:
    """Install `handler` for the signals, except those that the parent process ignores."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise signals as `Stopped` inside the block; does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _received.clear()
    _hints.clear()
    with handlers_restored():
        set_handler(raise_stopped)
        yield


@contextmanager
def handlers_restored() -> Iterator[None]:
    """Restore the signal handlers after the block."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


def exit_now(number: int, frame: FrameType | None = None) -> None:
    """Signal handler: report the signal and end the process immediately."""
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    _received.insert(0, number)
    code = report_stop()
    for cleanup in _cleanups:
        with suppress(Exception):
            cleanup()
    os._exit(code)


def raise_stopped(number: int, frame: FrameType | None = None) -> None:
    """Signal handler: raise `Stopped`; the next signal ends the process immediately.

    During the import of torch the first signal does so, too: torch tries to import numpy and would take the exception
    for its absence.
    """
    if _in_import_of("torch", frame):
        exit_now(number)
    set_handler(exit_now)
    _received.append(number)
    raise Stopped


def _in_import_of(module: str, frame: FrameType | None) -> bool:
    """Whether a module's body is running in this frame or one of its callers."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == module:
            return True
        frame = frame.f_back
    return False


@contextmanager
def graceful_stop(request: Callable[[], None], *, seconds: float) -> Iterator[None]:
    """On SIGTERM or Ctrl-C, let the block end normally, as training does with a checkpoint, then raise `Stopped`.

    A second signal ends the process immediately.

    Args:
        request: called once, in the signal handler.
        seconds: timeout, after which `Stopped` is raised inside the block.
    """
    requested: list[int] = []

    def later(number: int, frame: FrameType | None) -> None:
        requested.append(number)
        _received.append(number)  # also if the block raises
        set_handler(exit_now)
        request()
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def too_late(number: int, frame: FrameType | None) -> None:
        raise_stopped(requested[0])

    if signal.getsignal(signal.SIGTERM) is not raise_stopped:  # not a command of polypool, or another thread
        yield
        return
    graceful = [
        number for number in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(number) is raise_stopped
    ]
    for number in graceful:
        signal.signal(number, later)
    before = signal.signal(signal.SIGALRM, too_late)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        for number in graceful:
            if signal.getsignal(number) is later:
                signal.signal(number, raise_stopped)
    if requested:
        raise_stopped(requested[0])


@contextmanager
def resume_hint(command: str) -> Iterator[None]:
    """Set the command that is printed for resuming after a signal, unless one is set; by default this process's."""
    _hints.append(command)
    yield
    _hints.remove(command)


@contextmanager
def cleanup_on_exit(cleanup: Callable[[], None]) -> Iterator[None]:
    """Call `cleanup`, which must be quick, only if a signal ends the process immediately inside the block."""
    _cleanups.append(cleanup)
    try:
        yield
    finally:
        _cleanups.remove(cleanup)


def report_stop() -> int:
    """Print the message, unless the terminal is closed, and return the exit code."""
    number = _received[0] if _received else signal.SIGINT
    if number == signal.SIGHUP:
        return 128 + number
    again = _hints[0] if _hints else invocation()
    with suppress(OSError, ValueError, RuntimeError):  # the signal may have interrupted a print
        sys.stdout.flush()
    with suppress(OSError, ValueError):
        fresh = "\n" if sys.stderr.isatty() else ""  # after a progress bar, or the terminal's ^C
        line = f"{fresh}stopped by {_NAMES[signal.Signals(number)]}; to resume: {again}\n"
        os.write(sys.stderr.fileno(), line.encode(errors="surrogateescape"))
    return 128 + number


def invocation() -> str:
    """Return this process's command line, shell-quoted."""
    _, *words = sys.orig_argv
    installed = bool(words) and Path(words[0]).name == "polypool"
    return shlex.join(["polypool", *words[1:]] if installed else ["python", *words])
