"""Errors with a message for the user; verbs print it and exit with a code, usually 2 (`infra.process.command`)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LACKING = "extract, and ingest with --corpus, compute the statistics of the training split"
"""Hint for a store without statistics for standardising features."""


class InputError(ValueError):
    """Invalid input by the user.

    The message names the problem, the place (file, row or id), the expected value, and a remedy.
    """

    exit_code = 2


PLUG_IN_ERRORS = (Exception, SystemExit)
"""Exceptions of foreign code: a script that is imported as a plug-in may call `sys.exit`."""


class AbsentError(InputError):
    """A file, folder or other resource that does not exist, perhaps yet."""


class AwayError(InputError):
    """A server does not answer, or a cluster lacks resources; possibly temporary."""


class FaultError(RuntimeError):
    """An infrastructure failure, independent of the job: a retry may succeed."""


_MANY, _SHOWN = 60, 8


def unknown(kind: str, name: object, choices: Iterable[object], hint: str = "") -> InputError:
    """Return the error for a `name` that is not among `choices`: it lists them, or the closest matches of many."""
    names = sorted(str(choice) for choice in choices)
    nearest = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    suggestion = f" Did you mean {nearest[0]!r}?" if nearest else ""
    shown = names
    if len(names) > _MANY:
        shown = sorted(difflib.get_close_matches(str(name), names, n=_SHOWN, cutoff=0.0))
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return InputError(
        f"unknown {kind} {str(name)!r}.{suggestion} Choices: {', '.join(shown) or 'none'}{more}.{hint}"
    )
