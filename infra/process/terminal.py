"""Text of others, such as ids and captions, without the characters that control a terminal."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

_KEPT = "\n\t"
_STDERR = 2  # the last of the three standard streams


def printable(text: str) -> str:
    r"""Escape what controls a terminal or cannot be encoded; line breaks and tabs stay.

    These are control characters, among them those that begin escape sequences or turn the direction of writing, and
    halves of surrogate pairs, as in file names that are no UTF-8. They become `\x1b`, `\u202e`, `\udcff`.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in _KEPT else char.encode("unicode_escape").decode()
        for char in text
    )


def open_closed_streams() -> None:
    """Open the standard streams that the caller has closed (`>&-`) on the null device.

    The files that are opened first would take their numbers, and get what is printed.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(number)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (open as long as the process)


@contextmanager
def _exit_on_error(stream: TextIO) -> Iterator[None]:
    """End the process where a stream takes no more: as SIGPIPE would in `| head`, with a message on a full disk."""
    try:
        yield
    except OSError as error:
        with suppress(OSError):  # discard what is buffered, which Python would try to flush at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if error.errno == errno.EPIPE:
            raise SystemExit(128 + signal.SIGPIPE) from None
        print(f"error: what is printed cannot be written: {error.strerror}", file=sys.stderr)
        raise SystemExit(1) from None


class Printable:
    """A text stream whose text goes through `printable`, and is escaped where its encoding lacks a character.

    It is no terminal, so that libraries send it no colours.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        encoding = self._stream.encoding or "utf-8"
        with _exit_on_error(self._stream):
            self._stream.write(printable(text).encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        with _exit_on_error(self._stream):
            self._stream.flush()

    def isatty(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
