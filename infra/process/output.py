"""Output of verbs: text without control characters; progress and next steps as text, as JSON lines, or not at all.

`--quiet` and `--log-format json` are options of every verb. The choice is in an environment variable, so that the
processes that a verb starts share it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, suppress
from typing import Any, TextIO

from polypool.infra.errors import unknown

LOG, WITHIN = "POLYPOOL_LOG", "POLYPOOL_WITHIN"
"""Environment variables: how progress is printed; and, for a verb within another one, that its next steps are not."""
TEXT, JSON, QUIET = MODES = ("text", "json", "quiet")
HELP = """every verb also takes
  --quiet              print results, warnings and errors alone
  --log-format json    print progress as JSON lines, on standard error"""


def mode() -> str:
    """Return how progress is printed: `text`, `json` or `quiet`."""
    return os.environ.get(LOG, TEXT)


def take_options(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return how progress is printed by the options of a command line, and its other words.

    Raises:
        InputError: no such format.
    """
    chosen, rest, waiting = mode(), list[str](), iter(words)
    for word in waiting:
        name, _, value = word.partition("=")
        if word == "--quiet":
            chosen = QUIET
        elif name in ("--log-format", "--log_format"):
            chosen = value or next(waiting, "")
        else:
            rest.append(word)
    if chosen not in MODES:
        raise unknown("format of progress (--log-format)", chosen, MODES)
    return chosen, rest


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable for this process and those that it starts, and restore it afterwards."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def printed_as(chosen: str) -> Iterator[None]:
    """Print progress in this form, in this process and those that it starts."""
    with (
        environment(LOG, chosen),
        redirect_stderr(_Unmarked(sys.stderr)) if chosen == JSON else nullcontext(),
    ):
        yield


_MARK = re.compile(r"^(\x1b\[\d+m)?\(\w+ pid=\d+(, ip=[\w.:]+)?\)(\x1b\[0m)? (?=\{)")


class _Unmarked:
    """Standard error in which JSON lines of Ray's workers do not begin with the name of their process."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(_MARK.sub("", text))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def log_line(**values: Any) -> None:
    """Print a JSON line to standard error."""
    sys.stderr.write(json.dumps(values) + "\n")
    sys.stderr.flush()


Step = tuple[str, Sequence[object]]
"""Purpose of a command, and its words, of which the first is a verb of `polypool` or, behind `$`, another program."""


def print_next(*steps: Step) -> None:
    """Print the commands that come next, each with what it is for; nothing where programs read the output."""
    if mode() != TEXT or os.environ.get(WITHIN) or not steps:
        return
    lines = [(command_line(words), why) for why, words in steps]
    width = min(max(len(line) for line, _ in lines), 100)
    print("\nnext:")
    for line, why in lines:
        print(f"  {line:<{width}}  # {why}")


def command_line(words: Sequence[object]) -> str:
    """Return a command as it is typed; words in capitals are left as they are, for the user to fill in."""
    first, *rest = map(str, words)
    ours = ["polypool"] if shutil.which("polypool") else ["python", "-m", "polypool"]
    program = [first.removeprefix("$")] if first.startswith("$") else [*ours, first]
    return " ".join([*program, *(word if word.isupper() else shlex.quote(word) for word in rest)])


def printable(text: str) -> str:
    r"""Escape what controls a terminal or cannot be encoded; line breaks and tabs stay.

    These are control characters, among them those that begin escape sequences or turn the direction of writing, and
    halves of surrogate pairs, as in file names that are no UTF-8. They become `\x1b`, `\u202e`, `\udcff`.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()
        for char in text
    )


def open_closed_streams() -> None:
    """Open the standard streams that the caller has closed (`>&-`) on the null device.

    The files that are opened first would take their numbers, and get what is printed.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:  # standard error
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
