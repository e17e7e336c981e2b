"""What a terminal is sent: text from files and data sets as text, whatever characters it holds."""

from __future__ import annotations

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


class Shown:
    """A text stream that passes on what is written to it as `shown`, and as its encoding can spell it.

    It says that it is no terminal, so that nobody sends it colours.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text; return its length."""
        encoding = self._stream.encoding or "utf-8"
        self._stream.write(shown(text).encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def isatty(self) -> bool:
        """Return False."""
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
