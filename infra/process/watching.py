"""Work in a process of its own, which is begun again when it dies: this one watches it, and does nothing else.

Work that is killed, by the system where memory is short, say, or that ends because what carries it failed
(`FaultError`), is begun again in a new process as long as it progresses; work that is done, refused or stopped is not.
Signals that ask this process to end are passed on, and where it is killed itself, the work is asked to end.
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
from typing import Protocol

from infra.errors import AwayError, FaultError
from infra.process.stopping import SIGNALS, heard, kept, listen, to_go_on
from infra.process.terminal import shown

PAUSE, LONGEST_PAUSE = 2.0, 120.0
"""Seconds before the second try in a row, after which it doubles, and at most."""
FAULT = os.EX_TEMPFAIL
"""The exit code of a process of the work whose carrier failed; the watching one ends with 1."""
_SETTLES = 0.2  # seconds in which a signal that both of us were sent has come to the work
_MOST_BYTES = 1 << 12


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One process of the work.

    Attributes:
        note: what the processes before it kept, empty where they kept nothing.
    """

    note: str
    _notes: int

    def keep(self, note: str) -> None:
        """Leave a line, of less than 4 KiB, to the processes that may come after this one; the last counts."""
        os.write(self._notes, f"{note}\n".encode())


class Work(Protocol):
    """What is done, and what the process that watches it does."""

    def do(self, attempt: Attempt) -> None:
        """Do it, or what is left of it."""

    def progress(self, note: str) -> object:
        """Return what is another one when there was progress."""

    def died(self, note: str, process: int) -> str:
        """Put in order what a dead process left; return the command that goes on, empty for the same one."""

    def given_up(self, note: str) -> None:
        """Put in order what is left where it is not begun again."""


def pause(row: int) -> float:
    """Return the seconds before it is begun again, after so many faults in a row without progress."""
    return 0.0 if row < 2 else min(PAUSE * 2 ** (row - 2), LONGEST_PAUSE)


def watched(work: Work, *, retries: int, note: str = "") -> None:
    """Do some work in a child of this process, and begin it again after faults.

    It returns, or raises what the work raises, in the child alone. Here it raises SystemExit with the exit code of the
    last child, or 128 and the number of the signal that killed it.

    Args:
        work: what is done; this process has no other thread.
        retries: how many faults in a row, without progress between them, are followed by another try.
        note: what the first one finds.
    """
    row, seen = 0, work.progress(note)
    for number in range(sys.maxsize):
        ended = _child(note)
        if isinstance(ended, Attempt):
            return _do(work, ended, again=number > 0)
        note = ended.note or note
        if not ended.by_fault:
            raise SystemExit(ended.code)
        before, seen = seen, work.progress(note)
        row = row + 1 if seen == before else 1
        again = work.died(note, ended.process)
        if row > retries:
            goes_on = f"; to go on: {again}" if again else ""
            _say(
                ended,
                f"is not begun again: {row} in a row without progress, and {retries} are tried again{goes_on}",
            )
            work.given_up(note)
            raise SystemExit(1 if ended.status == FAULT else ended.code)
        seconds = pause(row)
        with to_go_on(again) if again else nullcontext():
            when = f"in {seconds:.0f} seconds" if seconds else "now"
            _say(
                ended,
                f"is begun again {when}: {row} in a row without progress, of which {retries} are tried again",
            )
            time.sleep(seconds)


def _say(ended: _Ended, then: str) -> None:
    print(f"note: the process at work {ended.how} and {then}", file=sys.stderr)


@dataclass(frozen=True, kw_only=True)
class _Ended:
    """How a child ended: its number, its exit code as `os.waitstatus_to_exitcode` has it, whether it was asked to."""

    process: int
    status: int
    asked: bool
    note: str

    @property
    def code(self) -> int:
        return self.status if self.status >= 0 else 128 - self.status

    @property
    def by_fault(self) -> bool:
        killed = self.status < 0 and -self.status not in SIGNALS
        return not self.asked and (killed or self.status == FAULT)

    @property
    def how(self) -> str:
        if self.status == FAULT:
            return "ended as said above"
        return f"was killed ({signal.Signals(-self.status).name})"


def _child(note: str) -> Attempt | _Ended:
    """Begin a child: there, return its attempt; here, wait for it, and return how it ended."""
    heeded, orders = os.pipe()
    kept_notes, notes = os.pipe()
    asked: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        with suppress(BrokenPipeError):  # it has just ended
            os.write(orders, bytes([number]))

    sys.stdout.flush()
    with kept():
        listen(pass_on)
        process = os.fork()
        if process:
            os.close(heeded)
            os.close(notes)
            _, status = os.waitpid(process, 0)
    if not process:
        os.close(orders)
        os.close(kept_notes)
        threading.Thread(target=_heed, args=[heeded], name="orders", daemon=True).start()
        return Attempt(note=note, _notes=notes)
    os.close(orders)
    os.set_blocking(kept_notes, False)
    left = b""
    with suppress(BlockingIOError):
        left = os.read(kept_notes, _MOST_BYTES)
    os.close(kept_notes)
    lines = left.decode().splitlines()
    return _Ended(
        process=process,
        status=os.waitstatus_to_exitcode(status),
        asked=bool(asked),
        note=lines[-1] if lines else "",
    )


def _heed(orders: int) -> None:
    """Send this process the signals that were passed on and that it was not sent itself, as a group of processes is."""
    main, passed_on = threading.main_thread().ident, Counter[int]()
    while order := os.read(orders, 1):
        (number,) = order
        passed_on[number] += 1
        time.sleep(_SETTLES)
        if heard(number) < passed_on[number]:
            signal.pthread_kill(main, number)
    signal.pthread_kill(main, signal.SIGTERM)  # nobody watches any more


def _do(work: Work, attempt: Attempt, *, again: bool) -> None:
    """Do the work in this process, and end it where what carries it failed."""
    try:
        work.do(attempt)
    except (FaultError, AwayError) as error:
        if isinstance(error, AwayError) and not again:
            raise
        print(f"error: {shown(str(error))}", file=sys.stderr)
        raise SystemExit(FAULT) from error
