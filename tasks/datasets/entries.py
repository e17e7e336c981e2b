"""The entries of a JSON object that is too large to be held: read piece by piece, one entry at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from polypool.infra.errors import InputError
from polypool.infra.files import existing

_PIECE = 1 << 20
_LARGEST = 64 << 20  # characters of one value; a longer one is a file of another form, or a broken one


def read_entries(path: str | Path, *, what: str) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of the object that a UTF-8 JSON file holds, in its order; keys may repeat.

    Args:
        path: the file.
        what: what was expected, for messages.

    Raises:
        InputError: it is missing, or is not a JSON object; the message says where it breaks off.
    """
    with existing(path, what=what).open(encoding="utf-8") as file:
        yield from _Entries(file, Path(path), what)


class _Entries:
    """The keys and values of one JSON object, decoded one after another while the file is read."""

    def __init__(self, file: TextIO, path: Path, what: str) -> None:
        self.file, self.path, self.what = file, path, what
        self.text, self.at, self.before = "", 0, 0
        self.ended = False
        self.decode = json.JSONDecoder().raw_decode

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        self._expect("{")
        if self._peek() == "}":
            self.at += 1
        else:
            more = True
            while more:
                if self._peek() != '"':
                    raise self._broken('expected a key, which begins with "')
                key = self._value()
                self._expect(":")
                yield key, self._value()
                more = self._expect(",}") == ","
        if self._peek():
            raise self._broken("there is more after the end of the object")

    def _value(self) -> Any:
        """Decode the value here; one that the text in memory does not hold whole is tried again with more of it."""
        self._peek()
        while True:
            try:
                value, end = self.decode(self.text, self.at)
            except (
                ValueError,
                RecursionError,
            ) as error:  # not JSON, or a number of more digits than Python reads
                if self.ended or len(self.text) - self.at > _LARGEST:
                    raise self._broken(str(getattr(error, "msg", error))) from error
            else:
                if end < len(self.text) or self.ended:  # a number that ends here may go on in the next piece
                    self.at = end
                    return value
            self._more()

    def _expect(self, choices: str) -> str:
        char = self._peek()
        if not char or char not in choices:
            raise self._broken(f"expected {' or '.join(choices)}, found {char or 'the end of the file'}")
        self.at += 1
        return char

    def _peek(self) -> str:
        """Return the next character that is not white space, or nothing at the end of the file."""
        while True:
            while self.at < len(self.text):
                if not self.text[self.at].isspace():
                    return self.text[self.at]
                self.at += 1
            if self.ended:
                return ""
            self._more()

    def _more(self) -> None:
        """Forget what has been read and take in as much again as is left, so that long values take few tries."""
        try:
            piece = self.file.read(max(_PIECE, len(self.text) - self.at))
        except UnicodeDecodeError as error:
            raise self._broken(f"not UTF-8: {error.reason}") from error
        self.ended = not piece
        self.before += self.at
        self.text, self.at = self.text[self.at :] + piece, 0

    def _broken(self, why: str) -> InputError:
        return InputError(
            f"{self.path}: cannot be read at character {self.before + self.at:,}: {why}; expected {self.what}. "
            f"The file may be cut short: fetch it again"
        )
