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
from polypool.infra.fields import check_value, is_unicode
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
_WHOLE = 2**63
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
            _refuse_undecodable(words)
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
    """Call the function of a verb with the options of its command line by name; the next commands are not printed.

    Args:
        verb: a function with keyword arguments; the fields of dataclass arguments are options, too.
        options: by name, with underscores; strings are accepted for paths, and a single value for a tuple.
        name: of the verb, for messages.

    Raises:
        InputError: an unknown, missing or mistyped option, or raised by the verb.
    """
    parameters = inspect.signature(verb).parameters.items()
    arguments: dict[str, Any] = {}
    kinds = {key: hint for key, hint in get_type_hints(verb).items() if key != "return"}
    records = {key: hint for key, hint in kinds.items() if dataclasses.is_dataclass(hint)}
    known = {key: hint for key, hint in kinds.items() if key not in records}
    known |= {key: hint for record in records.values() for key, hint in get_type_hints(record).items()}
    for key in options:
        if key not in known:
            raise unknown(f"option of {name}", key, known)
    lacking = [key for key, of in parameters if of.default is of.empty and key not in {**options, **records}]
    given = {key: _as_typed(value, known[key]) for key, value in options.items()}
    for key, value in given.items():
        check_value(value, known[key], f"{name}: {key}")
    for key, record in records.items():
        fields = {each.name: each for each in dataclasses.fields(record)}
        mine = {each: given.pop(each) for each in fields if each in given}
        needed = [
            each for each, of in fields.items() if of.default is of.default_factory is dataclasses.MISSING
        ]
        lacking += [each for each in needed if each not in mine]
        arguments[key] = None if lacking else record(**mine)
    if lacking:
        raise InputError(f"{name}: {', '.join(lacking)} is missing")
    with environment(WITHIN, "python"):
        verb(**arguments, **given)


def _as_typed(value: Any, hint: Any) -> Any:
    """Convert an option to its type: strings to paths, lists and single values to tuples."""
    kinds = get_args(hint) or (hint,)
    if get_origin(hint) is tuple:
        values = value if isinstance(value, list | tuple) else [value]
        return tuple(_as_typed(each, kinds[0]) for each in values)
    return Path(value) if Path in kinds and isinstance(value, str) else value


def _refuse_undecodable(words: Sequence[str]) -> None:
    """Check that the command line and the working folders are valid UTF-8, because a run records them.

    Raises:
        InputError: they are not, or the current folder was deleted.
    """
    try:
        folder = os.getcwd()
    except OSError as error:
        raise InputError(
            f"the current folder cannot be used: {error.strerror}; change to another one"
        ) from error
    for what, text in (
        ("the current folder", folder),
        ("POLYPOOL_HOME", os.environ.get("POLYPOOL_HOME", "")),
        *(("the command line", word) for word in words),
    ):
        if not is_unicode(text):
            raise InputError(
                f"{what} has a name that is no UTF-8, which no record can hold: {text}; rename it"
            )


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
    """Return a registry with this package's rules for tyro's arguments.

    `file:///x` of type `Path` is `/x`, and other URLs are kept as text; integers have 64 bits.
    """
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def whole(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
        if info.type is not int:
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="INT",
            instance_from_str=lambda words: _whole(words[0]),
            is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
            str_from_instance=lambda value: [str(value)],
        )

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


def _whole(text: str) -> int:
    if not -_WHOLE <= (number := int(text)) < _WHOLE:
        raise ValueError(f"{text:.40} has more than 64 bits")
    return number


def _path(text: str) -> Path:
    return local(text) if text.lower().startswith("file:/") else Path(text)
