"""One way for bad input to end: a clear message and exit code 2, never a traceback."""

from __future__ import annotations

import difflib
import functools
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from pathlib import Path

from infra.process.garbage import search_seldom
from infra.process.stopping import say, stoppable
from infra.process.terminal import Shown, shown


class InputError(ValueError):
    """What the user gave cannot be used.

    The message says what is wrong, where (file, row or id), what was expected, and what to do.
    """

    exit_code = 2


class AbsentError(InputError):
    """Something is not there yet, and may still be created."""


class MissingError(InputError):
    """A file or folder that there is not.

    Attributes:
        path: where it was looked for.
    """

    def __init__(self, message: str, path: Path = Path()) -> None:  # unpickled with the message alone
        super().__init__(message)
        self.path = path


class AwayError(InputError):
    """Somebody does not answer, or a cluster has less than it takes; what was there once may be away for a while."""


class FaultError(RuntimeError):
    """What carries the work failed, and not the work: another try may go well."""


_MANY, _SHOWN = 60, 8


def unknown(kind: str, name: object, choices: Iterable[object], hint: str = "") -> InputError:
    """Return the error for a `name` that is none of `choices`: it lists them, the nearest of very many."""
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


def command(main: Callable[[], None]) -> Callable[[], None]:
    """Wrap the `main` of a verb: an `InputError` is printed to standard error and exits with its code.

    What is printed may come from files of others: it reaches the terminal as text (`infra.process.terminal`).
    A signal that ends it, such as Ctrl-C, is a line on standard error, too, which says how to go on.
    """

    @functools.wraps(main)
    def run() -> None:
        search_seldom()
        try:
            from infra.storage.arguments import path_arguments  # here, as it raises what is above

            with stoppable(), redirect_stdout(Shown(sys.stdout)), path_arguments():
                main()
                sys.stdout.flush()
        except InputError as error:
            print(f"error: {shown(str(error))}", file=sys.stderr)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            sys.exit(say())

    return run
