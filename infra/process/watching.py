"""Supervision: work in a child process, which is started again when it dies.

Work that is killed, as for want of memory, or that ends with `FaultError` is retried as long as it progresses; work
that is done, refused or stopped is not. Signals to this process are passed on to the child, and where this process is
killed, the child stops.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Generic, Protocol, TypeVar

from polypool.infra.errors import AwayError, FaultError
from polypool.infra.process.stopping import (
    SIGNALS,
    handlers_restored,
    resume_hint,
    set_handler,
    times_received,
)
from polypool.infra.process.terminal import printable

PAUSE, LONGEST_PAUSE = 2.0, 120.0
"""Seconds before the second retry in a row, after which the pause doubles, and the longest pause."""
FAULT = os.EX_TEMPFAIL
"""The exit code of a child that met a `FaultError`; this process then exits with 1."""
_SETTLES = 0.2  # seconds until a signal to the process group has reached the child
_MOST_BYTES = 1 << 12
T = TypeVar("T", covariant=True)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One child process, with the last note of earlier ones, empty where they left none."""

    note: str
    _pipe: int

    def keep(self, note: str) -> None:
        """Leave a line of less than 4 KiB to later children; the last one counts."""
        os.write(self._pipe, f"{note}\n".encode())


class Work(Protocol, Generic[T]):
    """Work that can be supervised."""

    def do(self, attempt: Attempt) -> T:
        """Do the work, or what is left of it."""

    def progress(self, note: str) -> object:
        """Return another value once there was progress."""

    def died(self, note: str, process: int) -> str:
        """Clean up after a dead child; return the command that resumes the work, empty for the same one."""

    def given_up(self, note: str) -> None:
        """Clean up where the work is not retried."""


def pause(row: int) -> float:
    """Return the seconds before a retry, after `row` faults in a row without progress."""
    return 0.0 if row < 2 else min(PAUSE * 2 ** (row - 2), LONGEST_PAUSE)


def watched(work: Work[T], *, retries: int, note: str = "") -> T:
    """Do some work in a child of this process, which has no other thread, and retry it after faults.

    It returns, or raises as the work does, in the child alone. Here it raises SystemExit with the exit code of the
    last child, or 128 plus the number of the signal that killed it.

    Args:
        work: the work.
        retries: how many faults in a row, without progress between them, are retried.
        note: for the first child.
    """
    row, seen, again = 0, work.progress(note), False
    while True:
        child = _fork(note)
        if isinstance(child, Attempt):
            return _do(work, child, again=again)
        note, again = child.note or note, True
        if not child.by_fault:
            raise SystemExit(child.code)
        before, seen = seen, work.progress(note)
        row = row + 1 if seen == before else 1
        resume = work.died(note, child.process)
        if row > retries:
            hint = f"; to go on: {resume}" if resume else ""
            _report(
                child,
                f"not begun again: {row} in a row without progress, and {retries} are tried again{hint}",
            )
            work.given_up(note)
            raise SystemExit(1 if child.status == FAULT else child.code)
        seconds = pause(row)
        when = f"in {seconds:.0f} seconds" if seconds else "now"
        with resume_hint(resume) if resume else nullcontext():
            of = f"{row} in a row without progress, of which {retries} are tried again"
            _report(child, f"begun again {when}: {of}")
            time.sleep(seconds)


@dataclass(frozen=True, kw_only=True)
class _Ended:
    """A child that ended.

    Attributes:
        process: its id.
        status: exit code, or minus a signal, as of `os.waitstatus_to_exitcode`.
        stopped: whether this process was told to end.
        note: the last one that it left.
    """

    process: int
    status: int
    stopped: bool
    note: str

    @property
    def code(self) -> int:
        return self.status if self.status >= 0 else 128 - self.status

    @property
    def by_fault(self) -> bool:
        killed = self.status < 0 and -self.status not in SIGNALS
        return not self.stopped and (killed or self.status == FAULT)


def _report(child: _Ended, then: str) -> None:
    killed = child.status != FAULT and f"was killed ({signal.Signals(-child.status).name})"
    print(f"note: the process at work {killed or 'ended as said above'} and is {then}", file=sys.stderr)


def _fork(note: str) -> Attempt | _Ended:
    """Fork a child: there, return its attempt; here, wait for it and return how it ended."""
    child_signals, our_signals = os.pipe()
    our_notes, child_notes = os.pipe()
    passed: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        passed.append(number)
        with suppress(BrokenPipeError):  # the child has just ended
            os.write(our_signals, bytes([number]))

    sys.stdout.flush()
    with handlers_restored():
        set_handler(pass_on)
        process = os.fork()
        if process:
            os.close(child_signals)
            os.close(child_notes)
            _, status = os.waitpid(process, 0)
    os.close(our_signals)
    if not process:
        os.close(our_notes)
        threading.Thread(target=_receive, args=[child_signals], name="signals", daemon=True).start()
        return Attempt(note=note, _pipe=child_notes)
    os.set_blocking(our_notes, False)
    left = b""
    with suppress(BlockingIOError):  # a process of the child's may still have the pipe
        left = os.read(our_notes, _MOST_BYTES)
    os.close(our_notes)
    code = os.waitstatus_to_exitcode(status)
    last = (left.decode().splitlines() or [""])[-1]
    return _Ended(process=process, status=code, stopped=bool(passed), note=last)


def _receive(signals: int) -> None:
    """Raise in the child the signals that were passed on, unless its process group got them, too."""
    main, passed = threading.main_thread().ident or 0, Counter[int]()
    while received := os.read(signals, 1):
        (number,) = received
        passed[number] += 1
        time.sleep(_SETTLES)
        if times_received(number) < passed[number]:
            signal.pthread_kill(main, number)
    signal.pthread_kill(main, signal.SIGTERM)  # the supervisor is dead


def _do(work: Work[T], attempt: Attempt, *, again: bool) -> T:
    """Do the work in this process, which exits with `FAULT` after a fault."""
    try:
        return work.do(attempt)
    except (FaultError, AwayError) as error:
        if isinstance(error, AwayError) and not again:
            raise
        print(f"error: {printable(str(error))}", file=sys.stderr)
        raise SystemExit(FAULT) from error
