"""Checks of a part, run one by one, each with advice for when it fails."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from polypool.infra.errors import InputError

_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that must hold of a part.

    Attributes:
        what: what must hold, in a few words.
        run: raises where it does not, an AssertionError where the message is enough; what it returns is printed.
        advice: what to change then.
        vital: whether nothing after it can be checked where it fails.
    """

    what: str
    run: Callable[[], str | None]
    advice: str = ""
    vital: bool = False


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a check; `passed` is None where a vital check before it failed."""

    what: str
    passed: bool | None
    message: str = ""

    def __str__(self) -> str:
        mark = {True: "ok", False: "FAILED", None: "not checked"}[self.passed]
        return f"{mark:<11}  {self.what}" + (f": {self.message}" if self.message else "")


def run_checks(checks: Iterable[Check]) -> Iterator[Outcome]:
    """Run the checks in order; after a vital one that fails, the others are only listed."""
    ended = False
    for check in checks:
        if ended:
            yield Outcome(what=check.what, passed=None)
            continue
        try:
            found = check.run()
        except Exception as error:  # a plug-in may raise anything
            ended = check.vital
            yield Outcome(what=check.what, passed=False, message=_failure(error, check.advice))
        else:
            yield Outcome(what=check.what, passed=True, message=found or "")


def _failure(error: Exception, advice: str) -> str:
    what = " ".join(str(error).split()) or "an assertion failed"
    if not isinstance(error, AssertionError | InputError):
        frames = [
            f for f in traceback.extract_tb(error.__traceback__) if "site-packages/torch" not in f.filename
        ]
        where = next((f for f in reversed(frames) if not _of_checks(f.filename)), frames[-1])
        what = f"{type(error).__name__}: {what} ({where.filename}, line {where.lineno})"
    if not advice or isinstance(error, InputError):  # whose message has its own advice
        return what
    return f"{what}. To do: {advice}"


def _of_checks(file: str) -> bool:
    """Whether a file holds checks, rather than what they check."""
    path = Path(file)
    return path.is_relative_to(_ROOT) and ("checks" in path.parts or path.stem in ("checks", "contract"))
