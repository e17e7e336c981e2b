"""The wrapper of a verb's `main`: invalid input and signals end it with a message and an exit code, not a traceback."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import gc
import inspect
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from polypool.infra.errors import InputError, unknown
from polypool.infra.extras import needed
from polypool.infra.fields import check_value
from polypool.infra.process.output import (
    HELP,
    WITHIN,
    Printable,
    environment,
    printable,
    printed_as,
    take_options,
)
from polypool.infra.process.stopping import report_stop, stoppable
from polypool.infra.storage import local

Repeated = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]
"""An option that can be repeated, with one value each."""
NamedRun = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help_behavior_hint="(required)")]
"""A run, see `polypool.infra.tracking.resolve_run`; if missing, the message lists the latest runs."""
_NARROW = 40  # columns, below which tyro wraps lines for minutes
AllByDefault = Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="(default: all)")]


def command(main: Callable[[], None]) -> Callable[[], None]:
    """Wrap the `main` of a verb: an `InputError` is printed to standard error and sets the exit code.

    Output may contain text from untrusted files: control characters are escaped (`polypool.infra.process.output`).
    """

    @functools.wraps(main)
    def run() -> None:
        # garbage collection takes a second while importing torch and MLflow, and two at exit
        gc.set_threshold(50_000, 20, 100)
        atexit.register(gc.freeze)
        try:
            chosen, words = take_options(sys.argv[1:])
            sys.argv[1:] = words
            with stoppable(), redirect_stdout(Printable(sys.stdout)), _arguments(), printed_as(chosen):
                if shutil.get_terminal_size().columns < _NARROW:
                    os.environ["COLUMNS"] = str(_NARROW)
                try:
                    _with_help(main, words)
                finally:
                    sys.stdout.flush()
        except InputError as error:
            print(f"error: {printable(str(error))}", file=sys.stderr)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            sys.exit(report_stop())

    return run


def call_verb(verb: Callable[..., None], options: Mapping[str, Any], *, name: str) -> None:
    """Call the function of a verb with options by name; the next commands are not printed.

    Args:
        verb: a function with keyword arguments; the fields of dataclass arguments are options, too.
        options: options by name, with underscores; a string is accepted for a path, a single value for a tuple.
        name: name of the verb, for messages.

    Raises:
        InputError: an unknown, missing or mistyped option, or raised by the verb.
    """
    hints = {key: hint for key, hint in get_type_hints(verb).items() if key != "return"}
    records = {key: hint for key, hint in hints.items() if dataclasses.is_dataclass(hint)}
    known = {key: hint for key, hint in hints.items() if key not in records}
    for record in records.values():
        known |= get_type_hints(record)
    given = {}
    for key, value in options.items():
        if key not in known:
            raise unknown(f"option of {name}", key, known)
        given[key] = _as_typed(value, known[key])
        check_value(given[key], known[key], f"{name}: {key}")
    try:
        for key, record in records.items():
            mine = given.keys() & {each.name for each in dataclasses.fields(record)}
            given[key] = record(**{each: given.pop(each) for each in mine})
        inspect.signature(verb).bind(**given)
    except TypeError as error:
        raise InputError(f"{name}: {str(error).partition('() ')[2] or error}") from error
    with environment(WITHIN, "python"):
        verb(**given)


def _as_typed(value: Any, hint: Any) -> Any:
    """Convert an option to its type: strings to paths, lists and single values to tuples."""
    kinds = get_args(hint) or (hint,)
    if get_origin(hint) is tuple:
        values = value if isinstance(value, list | tuple) else [value]
        return tuple(_as_typed(each, kinds[0]) for each in values)
    return Path(value) if Path in kinds and isinstance(value, str) else value


@needed()
def _with_help(main: Callable[[], None], words: Sequence[str]) -> None:
    """Call a verb; after its help, print the options common to all verbs."""
    try:
        main()
    except SystemExit as end:
        if not end.code and {"-h", "--help"} & {*words}:
            print(f"\n{HELP}")
        raise


def _arguments() -> ConstructorRegistry:
    """Return tyro's rules for arguments, with one more: a `Path` of `file:///x` is `/x`; other URLs stay text."""
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def path(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
        if info.type is not Path:
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="PATH",
            instance_from_str=lambda words: _path(words[0]),
            is_instance=lambda value: isinstance(value, Path),
            str_from_instance=lambda value: [str(value)],
        )

    return registry


def _path(text: str) -> Path:
    return local(text) if text.lower().startswith("file:/") else Path(text)
