"""Rules that the fields of a dataclass keep, written where the field is declared: `lr: Annotated[float, ABOVE_0]`.

`validate` holds a made instance to its types and rules, and `from_plain` makes one of what JSON gave. Both end in an
`InputError` that names the field, its value and what is expected.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from infra.errors import InputError, unknown

T = TypeVar("T")


@dataclass(frozen=True)
class Rule:
    """What a value must be beside its type.

    Args:
        expected: said after "must be".
        holds: whether a value of the right type keeps the rule; may raise an InputError that says more.
    """

    expected: str
    holds: Callable[[Any], bool]


def at_least(least: float) -> Rule:
    """Return the rule of a number that has a smallest value."""
    return Rule(f"at least {least}", lambda value: value >= least)


def above(bound: float) -> Rule:
    """Return the rule of a number that is larger than another one."""
    return Rule(f"above {bound}", lambda value: value > bound)


NOT_EMPTY = Rule("a name, not nothing", bool)


def validate(instance: Any, *, prefix: str = "--") -> None:
    """Check every field of a dataclass instance against its declared type and rules.

    Args:
        instance: what was made.
        prefix: stands before a field's name in messages, which is spelled as a flag: `--optim.` for those of a part.

    Raises:
        InputError: the first field that does not fit: its name, the value and what is expected.
    """
    for name, hint in hints(type(instance)).items():
        check_value(getattr(instance, name), hint, prefix + name.replace("_", "-"))


def check_value(value: Any, hint: Any, where: str) -> None:
    """Hold a value to a type and to the rules that stand with it, and so each element of a tuple or mapping.

    An int is a float, a bool is neither, and a float is finite.

    Raises:
        InputError: the value does not fit; `where` is what the message calls it.
    """
    if typing.get_origin(hint) is typing.Annotated:
        check_value(value, hint.__origin__, where)
        for rule in hint.__metadata__:
            if isinstance(rule, Rule):
                _hold(rule, value, where)
        return
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if not _is(value, hint, origin, args):
        raise InputError(f"{where} must be {_called(hint, origin, args)}, not {value!r}")
    if origin is tuple:
        inner = [args[0]] * len(value) if args[-1] is Ellipsis else args
        for element, kind in zip(value, inner, strict=True):
            check_value(element, kind, where)
    if origin is Mapping:
        for key, element in value.items():
            check_value(key, args[0], where)
            check_value(element, args[1], f"{where}[{key!r}]")


def from_plain(cls: type[T], values: Any) -> T:
    """Return the dataclass instance that `dataclasses.asdict` and JSON made `values` of.

    Raises:
        InputError: a field that there is not or that is missing, or a value that does not fit its field.
    """
    if not isinstance(values, Mapping):
        raise InputError(f"{cls.__name__} must be a mapping of its settings, not {values!r}")
    declared = hints(cls)
    for name in values:
        if name not in declared:
            raise unknown(f"setting of {cls.__name__}:", name, declared)
    for field in dataclasses.fields(cls):
        needed = field.default is field.default_factory is dataclasses.MISSING
        if needed and field.name not in values:
            raise InputError(f"{cls.__name__} needs the setting {field.name!r}, which is missing")
    return cls(**{name: _restored(declared[name], value) for name, value in values.items()})


@functools.cache
def hints(cls: type) -> Mapping[str, Any]:
    """Return the declared type of each field, with its rules."""
    return types.MappingProxyType(typing.get_type_hints(cls, include_extras=True))


def plain(hint: Any) -> Any:
    """Return a declared type without its rules."""
    return plain(hint.__origin__) if typing.get_origin(hint) is typing.Annotated else hint


def _restored(hint: Any, value: Any) -> Any:
    """Return a JSON value as its field has it: lists are tuples, mappings may be dataclasses."""
    if dataclasses.is_dataclass(plain(hint)):
        return from_plain(plain(hint), value)
    return _frozen(value)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _hold(rule: Rule, value: Any, where: str) -> None:
    try:
        held = rule.holds(value)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    if not held:
        raise InputError(f"{where} must be {rule.expected}, not {value!r}")


def _is(value: Any, hint: Any, origin: Any, args: tuple[Any, ...]) -> bool:
    """Whether a value has a type, but for the elements of a tuple or mapping; an int is a float, a bool neither."""
    if origin is typing.Literal:
        return value in args
    if origin is tuple:
        return isinstance(value, tuple) and (args[-1] is Ellipsis or len(value) == len(args))
    if origin is Mapping:
        return isinstance(value, Mapping)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, hint) and not (hint is int and isinstance(value, bool))


_NAMES = {int: "a whole number", float: "a finite number", bool: "True or False", str: "text"}


def _called(hint: Any, origin: Any, args: tuple[Any, ...]) -> str:
    if origin is typing.Literal:
        return f"one of {', '.join(map(str, args))}"
    if origin is tuple:
        many = args[-1] is Ellipsis
        return "a tuple" + ("" if many else f" of {len(args)}")
    return "a mapping" if origin is Mapping else _NAMES.get(hint) or f"a value of {hint.__name__}"
