"""The wrapping of a verb's `main`: bad input and signals end it with a line and an exit code, never a traceback."""

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
"""An option that may be given several times, one value each."""
NamedRun = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help_behavior_hint="(required)")]
"""A run, as of `polypool.infra.tracking.resolve_run`; without one, the message lists the latest runs."""
_WHOLE = 2**63
_NARROW = 40  # columns, below which tyro breaks lines for minutes
AllByDefault = Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="(default: all)")]


def command(main: Callable[[], None]) -> Callable[[], None]:
    """Wrap the `main` of a verb: an `InputError` is printed to standard error and exits with its code.

    What is printed may come from files of others: control characters are escaped (`polypool.infra.process.output`).
    """

    @functools.wraps(main)
    def run() -> None:
        # with torch and MLflow in memory, garbage collection takes a second of their import, and two at the end
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
    """Call the function of a verb with the options of its command line by name; it prints no next commands.

    Args:
        verb: a function of keyword arguments, some of which are dataclasses whose fields are options themselves.
        options: by name, with underscores; texts may stand for paths, and one value for a tuple of one.
        name: of the verb, for messages.

    Raises:
        InputError: an unknown or missing option, a value of another type, or as the verb.
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
    """Return an option with texts as paths, and lists or one value as tuples, where its type has these."""
    kinds = get_args(hint) or (hint,)
    if get_origin(hint) is tuple:
        values = value if isinstance(value, list | tuple) else [value]
        return tuple(_as_typed(each, kinds[0]) for each in values)
    return Path(value) if Path in kinds and isinstance(value, str) else value


def _refuse_undecodable(words: Sequence[str]) -> None:
    """Refuse what cannot be recorded with a run: a word, or a name of the folders it works in, that is no UTF-8.

    Raises:
        InputError: there is one, or the current folder was deleted.
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
    """Call a verb; after its help, print the options that all verbs have."""
    try:
        main()
    except SystemExit as end:
        if not end.code and {"-h", "--help"} & {*words}:
            print(f"\n{HELP}")
        raise


def _arguments() -> ConstructorRegistry:
    """Return a context in which tyro reads arguments as this package means them.

    `file:///x` of type `Path` is `/x`, and other URLs pass as text; whole numbers are of 64 bits.
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
