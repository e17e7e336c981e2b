"""Work beside that of the main thread: in a thread, one piece at a time, or in a forked process."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from polypool.infra.process.stopping import SIGNALS

T = TypeVar("T")


class OneAtATime:
    """A thread that does one piece of work at a time; the next is taken once the one before is done."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._pending: Future | None = None

    def submit(self, work: Callable[[], object]) -> None:
        """Begin some work after the end of what was begun before; raises the error of that, if it failed."""
        self._wait()
        self._pending = self._pool.submit(work)

    def close(self) -> None:
        """Wait for the end of what was begun last, raise its error, if it failed, and end the thread."""
        self._wait()
        self._pool.shutdown()

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.result()


@contextmanager
def beside(work: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Run some work in a fork of this process; leaving the block ends it.

    Args:
        work: returns what can be pickled. Signals that end this process do not reach it.

    Yields:
        A call that waits for the work, and returns what it returned or raises what it raised.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=[work, theirs], daemon=True)
    process.start()
    theirs.close()

    def result() -> T:
        try:
            error, returned = ours.recv()
        except EOFError:
            process.join()
            code = process.exitcode or 0
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise RuntimeError(f"a forked process ended with {how}") from None
        if error is not None:
            raise error
        return returned

    try:
        yield result
    finally:
        process.kill()
        process.join()
        ours.close()


def _run(work: Callable[[], Any], results: Connection) -> None:
    for number in SIGNALS:  # the parent ends this process
        signal.signal(number, signal.SIG_IGN)
    try:
        results.send((None, work()))
    except Exception as error:
        results.send((error, None))
