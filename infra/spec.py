"""Specs, which name the parts of a run: `kmax(k=5)`."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from polypool.infra.errors import InputError

_SPEC = re.compile(r"\s*([A-Za-z_][\w.\-]*(?::[A-Za-z_][\w.]*)?)\s*(?:\((.*)\))?\s*", re.DOTALL)
_PARAM = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(.+?)\s*", re.DOTALL)


@dataclass(frozen=True)
class Spec:
    """A name and the parameters given to it; `str` returns it in the form that `parse` reads."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def parse(text: str | Spec) -> Spec:
        """Return the spec that `name` or `name(key=value, ...)` is; each text is parsed once.

        A value is a Python literal or another spec, which stays a string. Nothing is evaluated.

        Raises:
            InputError: the text is not a spec.
        """
        return text if isinstance(text, Spec) else _parsed(text)

    def __str__(self) -> str:
        inside = ", ".join(f"{key}={_written(value)}" for key, value in self.params.items())
        return f"{self.name}({inside})" if inside else self.name


def changed(spec: str, **params: Any) -> str:
    """Return a spec with new values of some parameters: `changed("kmax(k=5)", k=3)`."""
    parsed = Spec.parse(spec)
    return str(Spec(parsed.name, {**parsed.params, **params}))


def without(spec: str, *names: str) -> str:
    """Return a spec without some of its parameters, if it has them."""
    parsed = Spec.parse(spec)
    return str(Spec(parsed.name, {key: value for key, value in parsed.params.items() if key not in names}))


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> Spec:
    match = _SPEC.fullmatch(text)
    if not match:
        raise InputError(f"cannot read the spec {text!r}: expected a name, or name(key=value, ...)")
    name, inside = match.groups()
    params: dict[str, Any] = {}
    for part in _split(inside or "", text):
        pair = _PARAM.fullmatch(part)
        if not pair:
            raise InputError(f"cannot read {part.strip()!r} in the spec {text!r}: expected key=value")
        key, value = pair.groups()
        if key in params:
            raise InputError(f"{key!r} is given twice in the spec {text!r}")
        params[key] = _value(value, text)
    return Spec(name, params)


def _written(value: Any) -> str:
    """Return a value as `_value` reads it: specs without quotes, all else as a literal."""
    if isinstance(value, str) and _SPEC.fullmatch(value) and value not in ("None", "True", "False"):
        return value
    return repr(value)


def _split(inside: str, spec: str) -> list[str]:
    """Split at the commas that are in no bracket and no quote."""
    parts, start, depth, quote = [], 0, 0, ""
    for at, char in enumerate(inside):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(inside[start:at])
            start = at + 1
        if depth < 0:
            break
    if depth or quote:
        raise InputError(f"a bracket or quote is not closed in the spec {spec!r}")
    last = inside[start:]
    return [*parts, last] if last.strip() else parts


def _value(text: str, spec: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two: nested too deeply
        if _SPEC.fullmatch(text):
            return text
        raise InputError(f"{text!r} in the spec {spec!r} is neither a literal nor a spec") from None
