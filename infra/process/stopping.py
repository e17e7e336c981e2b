"""How a command ends when it is asked to: by Ctrl-C, by SIGTERM, or because its terminal is gone (SIGHUP).

One line says so, with what to type to go on; the exit code is 128 and the signal's number, as a shell has it. While a
command is imported it ends at once, as nothing has begun. Later the signal is raised as `Stopped` where the command is,
so that it leaves nothing behind; a second one ends it there and then.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
_came: list[int] = []
_next: list[str] = []
_always: list[Callable[[], None]] = []


class Stopped(KeyboardInterrupt):
    """A signal asks this process to end, or somebody asked a part of its work to.

    Libraries may make a plain KeyboardInterrupt of it, as Ray does: catch that.
    """


def heard(number: int) -> int:
    """Return how often a signal has come to what is `stoppable`."""
    return _came.count(number)


def listen(handler: Callable[[int, FrameType | None], None]) -> None:
    """Let `handler` have the signals, but for those that whoever started this process wants ignored."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise the signals as `Stopped` inside; in another thread than the main one, leave them as they are."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _came.clear()
    _next.clear()
    with kept():
        listen(end)
        yield


@contextmanager
def kept() -> Iterator[None]:
    """Put the handlers of the signals back that what is inside replaces."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


def end_at_once(number: int, frame: FrameType | None = None) -> None:
    """Handle a signal: end here and now, with the line."""
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    _came.insert(0, number)
    code = say()
    for undo in _always:
        with suppress(Exception):
            undo()
    os._exit(code)


def end(number: int, frame: FrameType | None = None) -> None:
    """Handle a signal: raise it, and let the next one end the process there and then.

    While torch is imported this one does: torch looks for numpy meanwhile, and takes what is raised for its absence.
    """
    if _in_import_of("torch", frame):
        end_at_once(number)
    listen(end_at_once)
    _came.append(number)
    raise Stopped


def _in_import_of(module: str, frame: FrameType | None) -> bool:
    """Whether the code of a module is being run for the first time, by its frame or one that waits for it."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == module:
            return True
        frame = frame.f_back
    return False


def run_async(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine as `asyncio.run` does; a signal cancels it, and is raised when it has left all in order."""
    import asyncio

    came: list[int] = []

    async def cancelled_by_signals() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def cancel(number: int) -> None:
            came.append(number)
            listen(end_at_once)
            task.cancel()

        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, cancel, number)
        await main

    with kept():
        try:
            asyncio.run(cancelled_by_signals())
        except asyncio.CancelledError:
            if not came:
                raise
    if came:
        end(came[0])


@contextmanager
def asked_first(ask: Callable[[], None], *, seconds: float) -> Iterator[None]:
    """Let SIGTERM ask what is inside to end by itself, as training does with a checkpoint.

    Where that returns, or after `seconds`, the signal is raised as it is without. Ctrl-C waits for nothing.

    Args:
        ask: called once, in the signal's handler.
        seconds: for what is inside.
    """
    asked: list[int] = []

    def later(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        _came.append(number)  # also where what is inside ends with an error
        signal.signal(signal.SIGTERM, end_at_once)
        ask()
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def too_late(number: int, frame: FrameType | None) -> None:
        end(signal.SIGTERM)

    if signal.getsignal(signal.SIGTERM) is not end:  # no command of ours, or a thread of one
        yield
        return
    signal.signal(signal.SIGTERM, later)
    before = signal.signal(signal.SIGALRM, too_late)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if signal.getsignal(signal.SIGTERM) is later:
            signal.signal(signal.SIGTERM, end)
    if asked:
        end(asked[0])


@contextmanager
def to_go_on(command: str) -> Iterator[None]:
    """Name the command that goes on with what is inside, where a signal ends it; else the same one again does."""
    _next.append(command)
    yield
    _next.remove(command)


@contextmanager
def at_once_too(undo: Callable[[], None]) -> Iterator[None]:
    """Undo what is inside also where a second signal ends the process there and then; it must take no time."""
    _always.append(undo)
    try:
        yield
    finally:
        _always.remove(undo)


def say() -> int:
    """Print the line, and return the exit code. Whoever closed the terminal reads none."""
    number = _came[0] if _came else signal.SIGINT
    if number == signal.SIGHUP:
        return 128 + number
    again = _next[-1] if _next else same_command()
    with suppress(OSError, ValueError, RuntimeError):  # a signal may have come in the middle of a print
        sys.stdout.flush()
    with suppress(OSError, ValueError):
        line = f"{_fresh_line()}stopped by {_NAMES[number]}; to go on: {again}\n"
        os.write(sys.stderr.fileno(), line.encode(errors="surrogateescape"))
    return 128 + number


def _fresh_line() -> str:
    """Return what ends a progress bar, and the terminal's ^C."""
    return "\n" if sys.stderr.isatty() else ""


def same_command() -> str:
    """Return the command line of this process as one would type it."""
    _, *words = sys.orig_argv
    installed = bool(words) and Path(words[0]).name == "polypool"
    return shlex.join(["polypool", *words[1:]] if installed else ["python", *words])
