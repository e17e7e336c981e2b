"""Rules for the fields of a dataclass, in their declaration: `lr: Annotated[float, above(0)]`.

`validate` checks an instance against its types and rules; `read_record` makes one of a JSON file, and `from_plain` of
parsed JSON, by pydantic. All raise an `InputError` that names the field, its value and what is expected. Rules alone,
and `check_value` for plain types, need no pydantic, as where only numpy and torch are installed.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import reprlib
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from polypool.infra.errors import InputError, unknown
from polypool.infra.files import read_json

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")


@dataclass(frozen=True)
class Rule:
    """A condition on a value beside its type.

    Args:
        expected: follows "must be" in messages.
        holds: whether a value of the right type keeps the rule; may raise an InputError that says more.
    """

    expected: str
    holds: Callable[[Any], bool]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic import AfterValidator, WrapValidator

        def check(value: Any) -> Any:
            if not self.holds(value):
                raise ValueError(self.expected)
            return value

        def check_number(value: Any, convert: Callable[[Any], float]) -> Any:
            convert(value)
            return check(value)  # a whole number stays one

        kind = WrapValidator(check_number) if source is float else AfterValidator(check)
        return kind.__get_pydantic_core_schema__(source, handler)


def at_least(least: float) -> Rule:
    return Rule(f"at least {least}", lambda value: value >= least)


def above(bound: float) -> Rule:
    return Rule(f"above {bound}", lambda value: value > bound)


def below(bound: float) -> Rule:
    return Rule(f"below {bound:,}", lambda value: value < bound)


def one_of(*choices: str) -> Rule:
    return Rule(" or ".join(map(repr, choices)), lambda value: value in choices)


def require(rule: Rule, /, **values: Any) -> None:
    """Refuse values, by name, that do not keep a rule, such as the parameters of a part.

    Raises:
        InputError: the first that does not.
    """
    for name, value in values.items():
        if not rule.holds(value):
            raise InputError(f"{name} must be {rule.expected}, not {value!r}")


NOT_EMPTY = Rule("a name, not nothing", bool)


def validate(instance: Any, *, prefix: str = "--") -> None:
    """Check every field of a dataclass instance against its declared type and rules.

    Args:
        instance: of a dataclass.
        prefix: of field names in messages, which are spelled as flags: `--optim.` for those of a part.

    Raises:
        InputError: the first field that does not fit: its name, the value and what is expected.
    """
    for name, hint in hints(type(instance)).items():
        check_value(getattr(instance, name), hint, prefix + name.replace("_", "-"))


def check_value(value: Any, hint: Any, where: str) -> None:
    """Check a value against a type and its rules, and so each element of a tuple or mapping.

    An int is a float, a bool is neither, and a float is finite.

    Raises:
        InputError: the value does not fit; `where` is its name in the message.
    """
    if hint in (int, float, bool, str):
        fits = isinstance(value, int | float if hint is float else hint)
        fits &= isinstance(value, bool) == (hint is bool)
        if not fits or (hint is float and not abs(value) <= sys.float_info.max):
            raise InputError(f"{where} must be {_EXPECTED[hint.__name__]}, not {_SHOWN.repr(value)}")
        return
    _checked(hint, lambda adapter: adapter.validate_python((value,)), where=where)


def read_record(cls: type[T], path: str | Path, *, what: str) -> T:
    """Read a JSON file that holds the fields of a dataclass.

    Args:
        cls: the dataclass. Fields may be numbers, texts, Literals, lists, tuples, mappings, other dataclasses, any of
            these or None, and Any.
        path: the file.
        what: what the file should hold, for the message if it does not exist.

    Raises:
        InputError: the file does not exist or is no JSON, or an unknown, missing or mistyped field, or a value that a
            rule forbids. The message names file, field, what is expected and what was found.
    """
    return from_plain(cls, read_json(path, what=what), where=str(path))


def from_plain(kind: type[T], values: Any, *, where: str = "") -> T:
    """Return the inverse of `dataclasses.asdict` and JSON.

    Args:
        kind: a dataclass, or any type of a field; see `read_record`.
        values: parsed JSON.
        where: the file, with which messages begin.

    Raises:
        InputError: a field is unknown or missing, or a value does not fit its field.
    """
    try:
        text = json.dumps([values], ensure_ascii=False)
        if not is_unicode(text):
            place, found = next(_not_unicode(values))
            raise InputError(f"{place.lstrip('.') or 'it'} must be valid Unicode, not {_SHOWN.repr(found)}")
        return _checked(kind, lambda adapter: adapter.validate_json(text))[0]
    except InputError as error:
        raise InputError(f"{where}: {error}" if where else str(error)) from error


@functools.cache
def hints(cls: type) -> Mapping[str, Any]:
    """Return the declared type of each field, with its rules."""
    return types.MappingProxyType(typing.get_type_hints(cls, include_extras=True))


@functools.cache
def _adapter(kind: Any) -> TypeAdapter:
    from pydantic import ConfigDict, TypeAdapter

    config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    return TypeAdapter(tuple[kind], config=config)  # of a dataclass alone, it would be its own configuration


def _checked(kind: Any, check: Callable[[TypeAdapter], Any], *, where: str = "") -> Any:
    from pydantic import ValidationError

    try:
        return check(_adapter(kind))
    except ValidationError as error:
        raise _refused(kind, error, where) from error


_EXPECTED = {
    "int": "a whole number",
    "float": "a finite number",
    "finite_number": "a finite number",
    "bool": "True or False",
    "string": "text",
    "str": "text",
    "tuple": "a list",
    "list": "a list",
    "dict": "a mapping of names to values",
    "mapping": "a mapping of names to values",
    "dataclass": "a mapping of names to values",
}
"""What messages call types, by pydantic's names."""
_SHOWN = reprlib.Repr()
"""Abbreviates values in messages, which in a damaged file may have megabytes."""
_SHOWN.maxstring = _SHOWN.maxother = 80


def _refused(kind: Any, error: ValidationError, where: str) -> InputError:
    """Return the message for the first field that is unknown or else does not fit."""
    errors = error.errors(include_url=False)
    first = min(errors, key=lambda each: each["type"] != "unexpected_keyword_argument")
    names, value, raised = first["loc"][1:], first["input"], first.get("ctx", {}).get("error")
    place = where + "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in names)
    place = place if where else place.removeprefix(".")
    if first["type"] == "missing":
        return InputError(f"{place} is missing")
    if first["type"] == "unexpected_keyword_argument":
        inside = place.removesuffix(str(names[-1]))
        return unknown("field", place, [inside + known for known in _fields_at(kind, names[:-1])])
    if isinstance(raised, InputError):  # of a rule, or of fields together
        return InputError(f"{place}: {raised}" if place else str(raised))
    expected = (
        str(raised) if isinstance(raised, ValueError) else first["msg"].removeprefix("Input should be ")
    )
    expected = _EXPECTED.get(first["type"].removesuffix("_type"), expected)
    if first["type"] == "literal_error":
        expected = "one of " + expected.replace(" or ", ", ").replace("'", "")
    if first["type"] == "tuple_type" and where:  # of an instance
        expected = "a tuple"
    return InputError(f"{place or 'it'} must be {expected}, not {_SHOWN.repr(value)}")


def _fields_at(kind: Any, names: Sequence[int | str]) -> list[str]:
    """Return the fields of the dataclass at some place of another type."""
    if dataclasses.is_dataclass(kind):
        if not names:
            return [field.name for field in dataclasses.fields(kind)]
        return _fields_at(hints(typing.cast("type", kind))[str(names[0])], names[1:])
    args = [arg for arg in typing.get_args(kind) if arg is not types.NoneType]
    if typing.get_origin(kind) in (typing.Annotated, typing.Union, types.UnionType):
        return _fields_at(args[0], names)
    return _fields_at(args[-1] if isinstance(names[0], str) else args[0], names[1:])


def _not_unicode(values: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """Yield texts that are no Unicode in parsed JSON, and their places; a name is at the place of its mapping."""
    if isinstance(values, str) and not is_unicode(values):
        yield at, values
    for name, value in values.items() if isinstance(values, dict) else ():
        yield from _not_unicode(name, at)
        yield from _not_unicode(value, f"{at}.{name}")
    for number, value in enumerate(values if isinstance(values, list) else ()):
        yield from _not_unicode(value, f"{at}[{number}]")


def is_unicode(text: str) -> bool:
    """Whether text can be written as UTF-8; JSON may hold half a surrogate pair, which cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
