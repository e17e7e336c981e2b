"""Rules for the fields of a dataclass, in their declaration: `lr: Annotated[float, above(0)]`.

`validate` checks an instance against its types and rules; `read_record` reads one from a JSON file, `from_plain` from
parsed JSON, with pydantic. All raise an `InputError` that names the field, its value and the expected type or rule.
Rules, and `check_value` for plain types, work without pydantic, for environments with numpy and torch only.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import reprlib
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
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
    """A condition on a value, in addition to its type.

    Args:
        expected: follows "must be" in messages.
        holds: whether a value of the right type satisfies the rule; may raise a more specific InputError.
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
            return check(value)  # an integer stays an integer

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
    """Check named values, such as the parameters of a part, against a rule.

    Raises:
        InputError: names the first that violates it.
    """
    for name, value in values.items():
        if not rule.holds(value):
            raise InputError(f"{name} must be {rule.expected}, not {value!r}")


NOT_EMPTY = Rule("a name, not nothing", bool)


def validate(instance: Any, *, prefix: str = "--") -> None:
    """Check every field of a dataclass instance against its declared type and rules.

    Args:
        instance: of a dataclass.
        prefix: of field names in messages, which are spelled as flags: `--optim.` for fields of `optim`.

    Raises:
        InputError: the name, value and expectation of the first invalid field.
    """
    for name, hint in hints(type(instance)).items():
        check_value(getattr(instance, name), hint, prefix + name.replace("_", "-"))


def check_value(value: Any, hint: Any, where: str) -> None:
    """Check a value, or each element of a tuple or mapping, against a type and its rules.

    An int is accepted as a float, a bool is neither, and a float must be finite.

    Raises:
        InputError: an invalid value; `where` is its name in the message.
    """
    if hint in (int, float, bool, str):
        fits = isinstance(value, int | float if hint is float else hint)
        fits &= isinstance(value, bool) == (hint is bool)
        if not fits or (hint is float and not abs(value) <= sys.float_info.max):
            raise InputError(f"{where} must be {_EXPECTED[hint.__name__]}, not {_SHOWN.repr(value)}")
        return
    _checked(hint, lambda adapter: adapter.validate_python((value,)), where=where)


def read_record(cls: type[T], path: str | Path, *, what: str) -> T:
    """Read a dataclass from a JSON file.

    Args:
        cls: the dataclass. Fields may be numbers, texts, Literals, lists, tuples, mappings, other dataclasses, any of
            these or None, and Any.
        path: the file.
        what: expected content, for the message if the file does not exist.

    Raises:
        InputError: a missing file, invalid JSON, an unknown, missing or mistyped field, or a value that violates a
            rule. The message names file, field, expectation and value.
    """
    return from_plain(cls, read_json(path, what=what), where=str(path))


def from_plain(kind: type[T], values: Any, *, where: str = "") -> T:
    """Return a value from parsed JSON, the inverse of `dataclasses.asdict`.

    Args:
        kind: a dataclass, or any type of a field; see `read_record`.
        values: parsed JSON.
        where: the file, a prefix of messages.

    Raises:
        InputError: an unknown, missing or invalid field.
    """
    try:
        return _checked(kind, lambda adapter: adapter.validate_json(json.dumps([values])))[0]
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
    return TypeAdapter(tuple[kind], config=config)  # pydantic refuses `config` for a bare dataclass


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
"""Names of types in messages, by pydantic's names."""
_SHOWN = reprlib.Repr()
"""Abbreviates values in messages; a damaged file may contain megabytes."""
_SHOWN.maxstring = _SHOWN.maxother = 80


def _refused(kind: Any, error: ValidationError, where: str) -> InputError:
    """Return the error for the first unknown, otherwise the first invalid field."""
    errors = error.errors(include_url=False)
    first = min(errors, key=lambda each: each["type"] != "unexpected_keyword_argument")
    names, value, raised = first["loc"][1:], first["input"], first.get("ctx", {}).get("error")
    place = where + "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in names)
    place = place if where else place.removeprefix(".")
    if first["type"] == "json_invalid":  # half a surrogate pair, or nested too deeply
        return InputError(f"not valid JSON: {raised}")
    if first["type"] == "missing":
        return InputError(f"{place} is missing")
    if first["type"] == "unexpected_keyword_argument":
        inside = place.removesuffix(str(names[-1]))
        return unknown("field", place, [inside + known for known in _fields_at(kind, names[:-1])])
    if isinstance(raised, InputError):  # raised by a rule, or by `__post_init__`
        return InputError(f"{place}: {raised}" if place else str(raised))
    expected = (
        str(raised) if isinstance(raised, ValueError) else first["msg"].removeprefix("Input should be ")
    )
    expected = _EXPECTED.get(first["type"].removesuffix("_type"), expected)
    if first["type"] == "literal_error":
        expected = "one of " + expected.replace(" or ", ", ").replace("'", "")
    if first["type"] == "tuple_type" and where:  # an instance is checked, not JSON
        expected = "a tuple"
    return InputError(f"{place or 'it'} must be {expected}, not {_SHOWN.repr(value)}")


def _fields_at(kind: Any, names: Sequence[int | str]) -> list[str]:
    """Return the fields of the dataclass at a path within another type."""
    if dataclasses.is_dataclass(kind):
        if not names:
            return [field.name for field in dataclasses.fields(kind)]
        return _fields_at(hints(typing.cast("type", kind))[str(names[0])], names[1:])
    args = [arg for arg in typing.get_args(kind) if arg is not types.NoneType]
    if typing.get_origin(kind) in (typing.Annotated, typing.Union, types.UnionType):
        return _fields_at(args[0], names)
    return _fields_at(args[-1] if isinstance(names[0], str) else args[0], names[1:])


def is_unicode(text: str) -> bool:
    """Whether text can be encoded as UTF-8; JSON may contain half a surrogate pair, which cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
