"""What a terminal is sent: text from files and data sets as text, whatever characters it holds."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

_KEPT = "\n\t"


def shown(text: str) -> str:
    r"""Return a text without characters that a terminal obeys, cannot show or cannot be sent.

    Control characters, among them those that begin escape sequences or turn the direction of writing, and halves of
    surrogate pairs, as in file names that are no UTF-8, become `\x1b`, `\u202e`, `\udcff`; line breaks and tabs stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in _KEPT else char.encode("unicode_escape").decode()
        for char in text
    )


@contextmanager
def _read_by_somebody(stream: TextIO) -> Iterator[None]:
    """End the process as SIGPIPE would where nobody reads a stream any more, as behind `| head`."""
    try:
        yield
    except BrokenPipeError:
        with suppress(OSError):  # what is still held back goes nowhere, without a word at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise SystemExit(128 + signal.SIGPIPE) from None


class Shown:
    """A text stream that passes on what is written to it as `shown`, and as its encoding can spell it.

    It says that it is no terminal, so that nobody sends it colours.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text; return its length."""
        encoding = self._stream.encoding or "utf-8"
        with _read_by_somebody(self._stream):
            self._stream.write(shown(text).encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        """Pass on what is held back."""
        with _read_by_somebody(self._stream):
            self._stream.flush()

    def isatty(self) -> bool:
        """Return False."""
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
