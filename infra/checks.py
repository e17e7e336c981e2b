"""Checks of a part (such as a plug-in), run in order, each with advice for failures."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from polypool.infra.errors import PLUG_IN_ERRORS, InputError

_ROOT, _LIBRARY = Path(__file__).parents[1], Path(os.__file__).parent


@dataclass(frozen=True, kw_only=True)
class Check:
    """One property that a part must have.

    Attributes:
        what: the property in a few words.
        run: raises if it is violated, an AssertionError if its message suffices; the returned text is printed.
        advice: how to fix a violation.
        vital: whether a failure makes all later checks impossible.
    """

    what: str
    run: Callable[[], str | None]
    advice: str = ""
    vital: bool = False

    def __call__(self) -> None:
        self.run()

    def __str__(self) -> str:
        return self.what


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a check; `passed` is None if an earlier vital check failed."""

    what: str
    passed: bool | None
    message: str = ""

    def __str__(self) -> str:
        mark = {True: "ok", False: "FAILED", None: "not checked"}[self.passed]
        return f"{mark:<11}  {self.what}" + (f": {self.message}" if self.message else "")


def run_checks(checks: Iterable[Check]) -> Iterator[Outcome]:
    """Run the checks in order; after a failed vital check, the others are listed without running."""
    ended = False
    for check in checks:
        if ended:
            yield Outcome(what=check.what, passed=None)
            continue
        try:
            found = check.run()
        except PLUG_IN_ERRORS as error:
            ended = check.vital
            yield Outcome(what=check.what, passed=False, message=_failure(error, check.advice))
        else:
            yield Outcome(what=check.what, passed=True, message=found or "")


def _failure(error: BaseException, advice: str) -> str:
    what, do = " ".join(str(error).split()) or "an assertion failed", advice
    if not isinstance(error, AssertionError | InputError):
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if not (_of_checks(frame.filename) or _of_library(frame.filename))]
        where = own[-1] if own else frames[-1]
        line = f", which is `{where.line}`" if own else ""
        what = f"{type(error).__name__}: {what} ({where.filename}, line {where.lineno}{line})"
        do = f"correct this line or its caller. Expected here: {advice}" if own else advice
    if not advice or isinstance(error, InputError):  # its message contains advice
        return what
    return f"{what}. To do: {do}"


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return the number of failed checks, and of checks that did not run; empty if all passed."""
    failed = [outcome for outcome in outcomes if outcome.passed is False]
    left = sum(outcome.passed is None for outcome in outcomes)
    text = f"{len(failed)} of {len(outcomes)} checks failed" if failed else ""
    return text + (
        f"; {left} were not run because they require that {failed[-1].what!r} holds" if left else ""
    )


def _of_library(file: str) -> bool:
    """Whether a file belongs to Python or an installed package rather than to the part."""
    return "site-packages" in file or Path(file).is_relative_to(_LIBRARY)


def _of_checks(file: str) -> bool:
    """Whether a file holds checks rather than the part that they check."""
    path = Path(file)
    return path.is_relative_to(_ROOT) and ("testing" in path.parts or path.stem in ("checks", "contract"))
