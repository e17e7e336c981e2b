"""Settings that a sweep gives to all its runs: `optim.epochs=2`, read as the type that the run declares."""

from __future__ import annotations

import ast
import dataclasses
import types
import typing
from collections.abc import Sequence
from typing import Any

from infra.errors import InputError, unknown
from tasks.run import Run

AXES = {
    "aggregator": "--aggregators",
    "text_aggregator": "--text-aggregators",
    "seed": "--seeds",
    "experiment": "--experiment",
    "recipe": "--recipes",
}
"""What a sweep decides itself, and by which option."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting: where it is, such as ("optim", "epochs"), and its value."""

    path: tuple[str, ...]
    value: Any

    @property
    def flags(self) -> list[str]:
        """The words that give it to `pipelines.train`."""
        *parents, name = (part.replace("_", "-") for part in self.path)
        if isinstance(self.value, bool):
            return ["--" + ".".join([*parents, name if self.value else f"no-{name}"])]
        return ["--" + ".".join([*parents, name]), *_words(self.value)]


def read_settings(texts: Sequence[str]) -> tuple[Setting, ...]:
    """Read `name=value` texts.

    Raises:
        InputError: no such setting, a value of the wrong type, a setting given twice, or one that the sweep decides;
            all wrong ones are in the message.
    """
    found: dict[tuple[str, ...], Setting] = {}
    wrong = []
    for text in texts:
        try:
            setting = _read(text)
            if setting.path in found:
                raise InputError(f"--set {text}: {'.'.join(setting.path)} is given twice")
            found[setting.path] = setting
        except InputError as error:
            wrong.append(str(error))
    if wrong:
        raise InputError("\n  ".join(wrong))
    return tuple(found.values())


def with_settings(run: Run, settings: Sequence[Setting]) -> Run:
    """Return a run with other settings.

    Raises:
        InputError: a value that the run refuses.
    """
    for setting in settings:
        run = _changed(run, setting.path, setting.value)
    return run


def _changed(part: Any, path: tuple[str, ...], value: Any) -> Any:
    name, *inside = path
    value = _changed(getattr(part, name), tuple(inside), value) if inside else value
    return dataclasses.replace(part, **{name: value})


def _read(text: str) -> Setting:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InputError(f"--set {text}: expected name=value, such as optim.epochs=2")
    if name in AXES:
        raise InputError(f"--set {text}: a sweep decides that itself; use {AXES[name]}")
    kinds = _kinds(Run)
    if name not in kinds:
        raise unknown("setting", name, kinds)
    return Setting(path=tuple(name.split(".")), value=_value(kinds[name], value, text))


def _kinds(cls: type, prefix: str = "") -> dict[str, Any]:
    """Return the type of every setting by its dotted name, without those that a sweep decides."""
    kinds: dict[str, Any] = {}
    hints = typing.get_type_hints(cls)
    for name in (field.name for field in dataclasses.fields(cls)):
        if dataclasses.is_dataclass(hints[name]):
            kinds |= _kinds(hints[name], f"{prefix}{name}.")
        elif prefix or name not in (*AXES, "published", "source"):
            kinds[f"{prefix}{name}"] = hints[name]
    return kinds


def _value(kind: Any, value: str, text: str) -> Any:
    """Read a value as its type says."""
    if typing.get_origin(kind) is typing.Literal:
        choices = typing.get_args(kind)
        if value not in choices:
            raise unknown(f"value in --set {text}:", value, choices)
        return value
    if kind is str:
        return value
    try:
        return _fitting(kind, ast.literal_eval(value))
    except (ValueError, SyntaxError, TypeError):
        raise InputError(f"--set {text}: {value!r} is not {_called(kind)}") from None


def _fitting(kind: Any, value: Any) -> Any:
    """Return a literal as its type wants it, or raise a ValueError."""
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, tuple | list):
            raise ValueError
        inner = typing.get_args(kind)
        kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(_fitting(k, v) for k, v in zip(kinds, value, strict=True))
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ValueError
    return value


def _called(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "True or False"}
    if isinstance(kind, types.GenericAlias):
        return "a tuple such as [3, 5] or [('visual', 0.1)], as its type says: " + str(kind)
    return names.get(kind, str(kind))


def _words(value: Any) -> list[str]:
    if isinstance(value, tuple):
        return [word for part in value for word in _words(part)]
    return [str(value)]
