"""Output of verbs besides their results: progress and next steps, as text, as JSON lines, or not at all.

`--quiet` and `--log-format json` are options of every verb. The choice is in an environment variable, so that the
processes that a verb starts share it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
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
def printed_as(chosen: str) -> Iterator[None]:
    """Print progress in this form, in this process and those that it starts."""
    before = os.environ.get(LOG)
    os.environ[LOG] = chosen
    try:
        with redirect_stderr(_Unmarked(sys.stderr)) if chosen == JSON else nullcontext():
            yield
    finally:
        if before is None:
            del os.environ[LOG]
        else:
            os.environ[LOG] = before


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
    width = min(max(len(line) for line, _ in lines), _WIDTH)
    print("\nnext:")
    for line, why in lines:
        print(f"  {line:<{width}}  # {why}")


_WIDTH = 100


@contextmanager
def without_next() -> Iterator[None]:
    """Print no next commands, for verbs that Python calls."""
    before = os.environ.get(WITHIN)
    os.environ[WITHIN] = "python"
    try:
        yield
    finally:
        os.environ.pop(WITHIN)
        if before is not None:
            os.environ[WITHIN] = before


def command_line(words: Sequence[object]) -> str:
    """Return a command as it is typed; words in capitals are left as they are, for the user to fill in."""
    first, *rest = map(str, words)
    program = [first.removeprefix("$")] if first.startswith("$") else [*_program(), first]
    return " ".join([*program, *(word if word.isupper() else shlex.quote(word) for word in rest)])


def _program() -> list[str]:
    return ["polypool"] if shutil.which("polypool") else ["python", "-m", "polypool"]
