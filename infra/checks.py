"""Promises of a part, checked one by one, each with what to do where it is broken."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from infra.errors import InputError

_HERE = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class Check:
    """A promise and how to find out whether it is kept.

    Attributes:
        what: is promised, in a few words.
        run: raises where the promise is broken, an AssertionError where the message says how; what it returns is
            shown beside the result.
        advice: what to change then.
        vital: nothing after it can be checked where it fails.
    """

    what: str
    run: Callable[[], str | None]
    advice: str = ""
    vital: bool = False


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a check went.

    Attributes:
        what: was promised.
        passed: None where it was not looked at, since something before it failed.
        message: what was seen; where a promise is broken, what, where, what was expected and what to do.
    """

    what: str
    passed: bool | None
    message: str = ""

    def __str__(self) -> str:
        mark = {True: "ok", False: "FAILED", None: "not checked"}[self.passed]
        return f"{mark:<11}  {self.what}" + (f": {self.message}" if self.message else "")


def run_checks(checks: Iterable[Check]) -> Iterator[Outcome]:
    """Run the checks in order; after a vital one that fails, the others are only named."""
    ended = False
    for check in checks:
        if ended:
            yield Outcome(what=check.what, passed=None)
            continue
        try:
            seen = check.run()
        except Exception as error:  # a plug-in may raise anything
            ended = check.vital
            yield Outcome(what=check.what, passed=False, message=_broken(error, check.advice))
        else:
            yield Outcome(what=check.what, passed=True, message=seen or "")


def _broken(error: Exception, advice: str) -> str:
    what = " ".join(str(error).split()) or "a promise is broken"
    if not isinstance(error, AssertionError | InputError):
        frames = [
            f for f in traceback.extract_tb(error.__traceback__) if "site-packages/torch" not in f.filename
        ]
        where = next((f for f in reversed(frames) if not _ours(f.filename)), frames[-1])
        what = f"{type(error).__name__}: {what} ({where.filename}, line {where.lineno})"
    if not advice or isinstance(error, InputError):  # which says itself what to do
        return what
    return f"{what}. To do: {advice}"


def _ours(file: str) -> bool:
    """Whether a file is one of the checks themselves, at which nobody needs to look."""
    path = Path(file)
    return path.is_relative_to(_HERE) and ("checks" in path.parts or path.stem in ("checks", "contract"))
