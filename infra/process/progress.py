"""Progress bars and messages about waiting: on a terminal, as lines of a log, as JSON lines, or disabled."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Generic, Self, TypeVar

from tqdm import tqdm

from polypool.infra.process.output import JSON, QUIET, TEXT, log_line, mode, printable

EVERY, SHARE = 5.0, 0.05
"""Seconds between two lines of a log, and at least this share of the time that has passed."""
_BAR = "{bar:20} {n_fmt}/{total_fmt} {rate_noinv_fmt}, {remaining} left  {desc}"
_OPEN = "{n_fmt} {rate_noinv_fmt}  {desc}"
_REPEAT_SECONDS = 30.0  # seconds between two lines about the same wait
T = TypeVar("T")


class Progress(Generic[T]):
    """A progress bar: tqdm's on a terminal; elsewhere a line from time to time, as JSON if requested.

    Args:
        items: counted during iteration.
        desc: description of the work.
        total: expected count (default: the length of `items`, if any).
        unit: name of an item, in the singular.
        delay: seconds before anything is shown.
        leave: keep the bar on a terminal at the end.
        scale: print large counts as 1.2k or 3.4M.
        resumes: the first update counts earlier work, which is excluded from the rate.
        disable: show nothing.
    """

    def __init__(
        self,
        items: Iterable[T] = (),
        *,
        desc: str,
        total: int | None = None,
        unit: str = "item",
        delay: float = 2.0,
        leave: bool = True,
        scale: bool = False,
        resumes: bool = False,
        disable: bool = False,
    ) -> None:
        self.items, self.desc, self.unit, self.scale = items, desc, unit, scale
        self.total = total if total is not None else getattr(items, "__len__", lambda: None)()
        self._mode = QUIET if disable else mode()
        self._bar = None
        if self._mode == TEXT and sys.stderr.isatty():
            self._bar = tqdm(
                total=self.total,
                desc=desc,
                unit=f" {unit}",
                unit_scale=scale,
                delay=delay,
                leave=leave,
                bar_format=_BAR if self.total else _OPEN,
            )
        self.done, self._resumed_at, self._shown = 0, 0, (-1, "")
        self._started = self._updated = time.monotonic()
        self._delay, self._resumes = delay, resumes

    def __iter__(self) -> Iterator[T]:
        with self:
            for item in self.items:
                yield item
                self.update()

    def update(self, n: int = 1) -> None:
        """Count `n` more items."""
        resumes, self._resumes = self._resumes, False
        if self._bar is not None:
            if resumes:
                self._bar.initial = self._bar.n = self._bar.last_print_n = n
            else:
                self._bar.update(n)
            return
        if resumes:
            self._resumed_at = n
        self.done += n
        now = time.monotonic()
        if now - self._started >= self._delay and now - self._updated >= max(
            EVERY, SHARE * (now - self._started)
        ):
            self._show()

    def set_description(self, text: str) -> None:
        """Change the description."""
        self.desc = text
        if self._bar is not None:
            self._bar.set_description_str(text)

    def close(self) -> None:
        """Show the last count, unless the work ended within the delay."""
        if self._bar is not None:
            self._bar.close()
        elif self._shown[0] >= 0 or time.monotonic() - self._started >= self._delay:
            self._show(last=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _show(self, *, last: bool = False) -> None:
        if self._mode == QUIET or (last and self._shown == (self.done, self.desc)):
            return
        self._updated, self._shown = time.monotonic(), (self.done, self.desc)
        seconds = max(self._updated - self._started, 1e-9)
        if self._mode == JSON:
            rate = (self.done - self._resumed_at) / seconds
            left = round((self.total - self.done) / rate, 1) if self.total and rate else None
            about = {"what": self.desc, "done": self.done, "total": self.total, "unit": self.unit}
            log_line(event="progress", **about, rate=round(rate, 3), seconds_left=left)
            return
        line = tqdm.format_meter(
            self.done,
            self.total,
            seconds,
            prefix=printable(self.desc),
            unit=f" {self.unit}",
            unit_scale=self.scale,
            bar_format=_BAR if self.total else _OPEN,
            initial=self._resumed_at,
        )
        # Ray Train would log the output of print a second time
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


resumed_bar = partial(Progress[None], delay=0.0, resumes=True)
"""Progress of work that may resume, shown without delay."""


@contextmanager
def waiting(what: str, *, after: float = 2.0) -> Iterator[None]:
    """Print `waiting for ...` if the block takes long, and again every 30 seconds.

    Args:
        what: continues `waiting for`.
        after: seconds before the first line.
    """
    started, over = time.monotonic(), threading.Event()

    def tell() -> None:
        pause = after
        while not over.wait(pause):
            say(f"waiting for {what}", what=what, seconds=time.monotonic() - started)
            pause = _REPEAT_SECONDS

    teller = threading.Thread(target=tell, daemon=True, name="waiting")
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


def say(text: str, *, what: str, seconds: float = 0.0) -> None:
    """Print a message about waiting to standard error, with the seconds so far."""
    if mode() == JSON:
        log_line(event="waiting", what=what, seconds=round(seconds, 1))
    elif mode() == TEXT:
        past = f" ({seconds:.0f} seconds so far)" if seconds >= _REPEAT_SECONDS else ""
        sys.stderr.write(f"{printable(text)}{past}\n")
        sys.stderr.flush()
