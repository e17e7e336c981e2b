"""Output of verbs: text without control characters; progress and next steps as text, as JSON lines, or not at all.

`--quiet` and `--log-format json` are options of every verb. An environment variable passes the choice on to child
processes.
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
"""Environment variables: the format of progress; and whether a verb called by another one omits its next steps."""
TEXT, JSON, QUIET = MODES = ("text", "json", "quiet")
HELP = """every verb also takes
  --quiet              print results, warnings and errors alone
  --log-format json    print progress as JSON lines, on standard error"""


def mode() -> str:
    """Return the format of progress: `text`, `json` or `quiet`."""
    return os.environ.get(LOG, TEXT)


def take_options(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the format of progress requested by a command line, and its remaining words.

    Raises:
        InputError: an unknown format.
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
    """Set an environment variable for this process and its children, and restore it afterwards."""
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
    """Print progress in this format, in this process and its children."""
    with (
        environment(LOG, chosen),
        redirect_stderr(_WithoutPrefix(sys.stderr)) if chosen == JSON else nullcontext(),
    ):
        yield


_PREFIX = re.compile(r"^(\x1b\[\d+m)?\(\w+ pid=\d+(, ip=[\w.:]+)?\)(\x1b\[0m)? (?=\{)")


class _Wrapper:
    """A text stream that changes what is written to another one."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def flush(self) -> None:
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _WithoutPrefix(_Wrapper):
    """Standard error that removes the process name from JSON lines of Ray's workers."""

    def write(self, text: str) -> int:
        self._stream.write(_PREFIX.sub("", text))
        return len(text)


def log_line(**values: Any) -> None:
    """Print a JSON line to standard error."""
    sys.stderr.write(json.dumps(values) + "\n")
    sys.stderr.flush()


Step = tuple[str, Sequence[object]]
"""Purpose and words of a command; the first word is a verb of `polypool` or, after `$`, another program."""


def print_next(*steps: Step) -> None:
    """Print the next commands with their purpose, unless output is for programs."""
    if mode() != TEXT or os.environ.get(WITHIN) or not steps:
        return
    lines = [(command_line(words), why) for why, words in steps]
    width = min(max(len(line) for line, _ in lines), 100)
    print("\nnext:")
    for line, why in lines:
        print(f"  {line:<{width}}  # {why}")


def command_line(words: Sequence[object]) -> str:
    """Return a shell-quoted command; words in capitals are placeholders and not quoted."""
    first, *rest = map(str, words)
    ours = ["polypool"] if shutil.which("polypool") else ["python", "-m", "polypool"]
    program = [first.removeprefix("$")] if first.startswith("$") else [*ours, first]
    return " ".join([*program, *(word if word.isupper() else shlex.quote(word) for word in rest)])


def printable(text: str) -> str:
    r"""Escape control characters and unencodable characters; line breaks and tabs are kept.

    Control characters include those that start escape sequences or change the writing direction; unencodable are halves
    of surrogate pairs, as in file names that are invalid UTF-8. They become `\x1b`, `\u202e`, `\udcff`.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()
        for char in text
    )


def open_closed_streams() -> None:
    """Open standard streams that the caller closed (`>&-`) on the null device.

    Otherwise the first opened files would get their descriptors, and the printed output.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:  # standard error
        pass
    os.close(number)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (open as long as the process)


@contextmanager
def _exit_on_error(stream: TextIO) -> Iterator[None]:
    """End the process if a stream fails: silently for a closed pipe (`| head`), with a message for a full disk."""
    try:
        yield
    except OSError as error:
        with suppress(OSError):  # discard the buffer, which Python would try to flush at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if error.errno == errno.EPIPE:
            raise SystemExit(128 + signal.SIGPIPE) from None
        print(f"error: the output cannot be written: {error.strerror}", file=sys.stderr)
        raise SystemExit(1) from None


class Printable(_Wrapper):
    """A text stream that applies `printable`, and escapes characters that its encoding lacks.

    It reports that it is not a terminal, so that libraries print no colours.
    """

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
