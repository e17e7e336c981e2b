"""Rules for the fields of a dataclass, in their declaration: `lr: Annotated[float, ABOVE_0]`.

`validate` checks an instance against its types and rules; `read_record` makes one of a JSON file, and `from_plain` of
parsed JSON. All raise an `InputError` that names the field, its value and what is expected.
"""

from __future__ import annotations

import dataclasses
import functools
import reprlib
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from polypool.infra.errors import InputError, unknown
from polypool.infra.files import read_json

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
    if typing.get_origin(hint) is typing.Annotated:
        check_value(value, hint.__origin__, where)
        _hold(hint, value, where)
        return
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if not _is(value, hint, origin, args):
        raise _refused(where, _called(hint, origin, args), value)
    if origin is tuple:
        inner = [args[0]] * len(value) if args[-1] is Ellipsis else args
        for element, kind in zip(value, inner, strict=True):
            check_value(element, kind, where)
    if origin is Mapping:
        for key, element in value.items():
            check_value(key, args[0], where)
            check_value(element, args[1], f"{where}[{key!r}]")


def read_record(cls: type[T], path: str | Path, *, what: str) -> T:
    """Read a JSON file that holds the fields of a dataclass.

    A field may be text, a number, bool, `Literal`, `None`, `Any`, another such dataclass, or a tuple, list, dict or
    Mapping of them, `X | None` of each, and `Annotated` with rules. Lists come back as tuples where the field is one.
    Fields that have defaults may be missing, such as those that are newer than the file.

    Args:
        cls: the dataclass. Its own InputErrors are reported like all others.
        path: the file.
        what: it is, for the message where there is no such file.

    Raises:
        InputError: there is no file, or no JSON in it; a field that there is not, that is missing, or that has the
            wrong type or a value that a rule forbids. The message names file, field, what is expected and what was
            found.
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
        return _restored(values, kind, "")
    except InputError as error:
        raise InputError(f"{where}: {error}" if where else str(error)) from error


@functools.cache
def hints(cls: type) -> Mapping[str, Any]:
    """Return the declared type of each field, with its rules."""
    return types.MappingProxyType(typing.get_type_hints(cls, include_extras=True))


def _record(cls: type[T], values: Any, where: str) -> T:
    if not isinstance(values, dict):
        raise _refused(where, "a mapping of names to values", values)
    declared, inside = hints(cls), f"{where}." if where else ""
    for name in values:
        if name not in declared:
            raise unknown("field", inside + name, [inside + known for known in declared])
    for field in dataclasses.fields(typing.cast("Any", cls)):
        needed = field.default is field.default_factory is dataclasses.MISSING
        if needed and field.name not in values:
            raise InputError(f"{inside}{field.name} is missing")
    restored = {name: _restored(value, declared[name], inside + name) for name, value in values.items()}
    try:
        return cls(**restored)
    except InputError as error:  # what it says of its fields together
        raise InputError(f"{where}: {error}" if where else str(error)) from error


def _restored(value: Any, hint: Any, where: str) -> Any:
    """Return a JSON value as its field has it: lists may be tuples, mappings may be dataclasses."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        restored = _restored(value, hint.__origin__, where)
        _hold(hint, restored, where)
        return restored
    if hint is Any or (value is None and types.NoneType in args):
        return value
    if origin in (types.UnionType, typing.Union):
        (kind,) = (kind for kind in args if kind is not types.NoneType)
        return _restored(value, kind, where)
    if dataclasses.is_dataclass(hint):
        return _record(hint, value, where)
    if origin in (tuple, list):
        return origin(_elements(value, args, where))
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            raise _refused(where, "a mapping of names to values", value)
        return {
            _restored(key, args[0], f"a name in {where}"): _restored(element, args[1], f"{where}[{key!r}]")
            for key, element in value.items()
        }
    check_value(value, hint, where)
    if hint is str and not is_unicode(value):
        raise _refused(where, "valid Unicode", value)
    return value


def _elements(value: Any, args: tuple[Any, ...], where: str) -> Iterable[Any]:
    many = len(args) == 1 or args[-1] is Ellipsis
    if not isinstance(value, list) or not (many or len(value) == len(args)):
        raise _refused(where, "a list" if many else f"a list of {len(args)}", value)
    if (
        many
        and args[0] is str
        and all(isinstance(text, str) for text in value)
        and is_unicode("".join(value))
    ):
        return value  # a vocabulary, of thousands of words
    kinds = [args[0]] * len(value) if many else args
    return [
        _restored(element, kind, f"{where}[{number}]")
        for number, (element, kind) in enumerate(zip(value, kinds, strict=True))
    ]


def is_unicode(text: str) -> bool:
    """Whether text can be written as UTF-8; JSON may hold half a surrogate pair, which cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refused(where: str, expected: str, value: Any) -> InputError:
    return InputError(f"{where or 'it'} must be {expected}, not {_SHOWN.repr(value)}")


_SHOWN = reprlib.Repr()
"""Abbreviates values in messages, which in a damaged file may have megabytes."""
_SHOWN.maxstring = _SHOWN.maxother = 80


def _hold(hint: Any, value: Any, where: str) -> None:
    for rule in hint.__metadata__:
        if not isinstance(rule, Rule):
            continue
        try:
            held = rule.holds(value)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
        if not held:
            raise _refused(where, rule.expected, value)


def _is(value: Any, hint: Any, origin: Any, args: tuple[Any, ...]) -> bool:
    """Whether a value has a type, without the elements of a tuple or mapping; an int is a float, a bool neither."""
    if origin is typing.Literal:
        return value in args
    if origin is tuple:
        return isinstance(value, tuple) and (args[-1] is Ellipsis or len(value) == len(args))
    if origin is Mapping:
        return isinstance(value, Mapping)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST
    return isinstance(value, hint) and not (hint is int and isinstance(value, bool))


_LARGEST = sys.float_info.max  # compared, since math.isfinite raises where a whole number is larger
_NAMES = {int: "a whole number", float: "a finite number", bool: "True or False", str: "text"}


def _called(hint: Any, origin: Any, args: tuple[Any, ...]) -> str:
    if origin is typing.Literal:
        return f"one of {', '.join(map(str, args))}"
    if origin is tuple:
        many = args[-1] is Ellipsis
        return "a tuple" + ("" if many else f" of {len(args)}")
    return "a mapping" if origin is Mapping else _NAMES.get(hint) or f"a value of {hint.__name__}"
