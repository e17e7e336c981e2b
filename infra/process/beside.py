"""Work of a second or two in a process of its own, beside what this one does meanwhile."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from infra.process.stopping import SIGNALS

T = TypeVar("T")


@contextmanager
def beside(work: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Begin some work in a copy of this process, which need not be sent what it works on.

    Args:
        work: what is done; what it returns can be pickled. Signals that end this process do not reach it.

    Yields:
        A call that waits for the work, and returns what it returned or raises what it raised. Who leaves without it
        ends the work there and then.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_do, args=[work, theirs], daemon=True)
    process.start()
    theirs.close()

    def done() -> T:
        try:
            error, returned = ours.recv()
        except EOFError:
            process.join()
            how = f"signal {-process.exitcode}" if process.exitcode < 0 else f"exit code {process.exitcode}"
            raise RuntimeError(f"a process that worked beside this one ended with {how}") from None
        if error is not None:
            raise error
        return returned

    try:
        yield done
    finally:
        process.kill()
        process.join()
        ours.close()


def _do(work: Callable[[], Any], told: Connection) -> None:
    for number in SIGNALS:  # whoever began this ends it
        signal.signal(number, signal.SIG_IGN)
    try:
        told.send((None, work()))
    except Exception as error:
        told.send((error, None))
