"""Specs, which name parts of a run with parameters, and trust in modules: `kmax(k=5)`, `mine:Mean`.

A plain name is a registered part or an installed entry point. `module:Name` runs the code of a module: specs typed on
the command line or in Python may name any module; specs read from files (runs, stores, tags) only modules trusted by
`--trust MODULE`, or `trust=("MODULE",)` in Python.

Trust is per process, not per thread, because any thread may use a loaded model; it is passed on to Ray workers.
"""

from __future__ import annotations

import ast
import functools
import importlib
import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polypool.infra.errors import PLUG_IN_ERRORS, InputError

# Specs may come from untrusted files: patterns avoid backtracking (`*+`), and the length is limited.
_SPEC = re.compile(r"\s*+([A-Za-z_][\w.\-]*+(?::[A-Za-z_][\w.]*+)?)\s*+(?:\((.*)\))?\s*+", re.DOTALL)
_KEY = re.compile(r"[A-Za-z_]\w*+")
_CODE = re.compile(r"([^\W\d][\w.\-]*+)(?::([^\W\d]\w*+))?")
"""A word with its optional `:Name`, anywhere in a spec, including parameters, brackets and quotes."""
LONGEST = 10_000
"""Maximum length of a spec."""
LARGEST_NUMBER = 2**31
"""Upper bound of integers in the settings of runs and parts, which may come from untrusted files."""
_trusted: set[str] = set()


@dataclass(frozen=True)
class Spec:
    """A name and its parameters; `str` is the inverse of `parse`."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def parse(text: str | Spec) -> Spec:
        """Parse `name` or `name(key=value, ...)`; results are cached.

        A value is a Python literal, `inf` or `nan`, or a nested spec, which remains a string. Nothing is evaluated.

        Raises:
            InputError: the text is not a spec.
        """
        return text if isinstance(text, Spec) else _parsed(text)

    def __str__(self) -> str:
        inside = ", ".join(f"{key}={format_value(value)}" for key, value in self.params.items())
        return f"{self.name}({inside})" if inside else self.name


def changed(spec: str, **params: Any) -> str:
    """Return a spec with some parameters replaced: `changed("kmax(k=5)", k=3)`."""
    parsed = Spec.parse(spec)
    return str(Spec(parsed.name, {**parsed.params, **params}))


def without(spec: str, *names: str) -> str:
    """Return a spec without some of its parameters."""
    parsed = Spec.parse(spec)
    return str(Spec(parsed.name, {key: value for key, value in parsed.params.items() if key not in names}))


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> Spec:
    if len(text) > LONGEST:
        raise InputError(
            f"the spec {text[:40]!r}... has {len(text):,} characters; at most {LONGEST:,} are allowed"
        )
    match = _SPEC.fullmatch(text)
    if not match:
        raise InputError(f"cannot read the spec {text!r}: expected a name, or name(key=value, ...)")
    name, inside = match.groups()
    params: dict[str, Any] = {}
    for part in split_values(inside or "", text):
        key, _, value = (each.strip() for each in part.partition("="))
        if not _KEY.fullmatch(key) or not value:
            raise InputError(f"cannot read {part.strip()!r} in the spec {text!r}: expected key=value")
        if key in params:
            raise InputError(f"{key!r} is given twice in the spec {text!r}")
        params[key] = _value(value, text)
    return Spec(name, params)


def format_value(value: Any) -> str:
    """Return a value in the form of a spec: strings that parse without quotes, such as specs, are unquoted."""
    if isinstance(value, str):
        with suppress(InputError):
            if _parsed(f"a(b={value})").params == {"b": value}:
                return value
    return repr(value)


def split_values(inside: str, spec: str) -> list[str]:
    """Split at commas outside brackets and quotes; messages name `spec`.

    Raises:
        InputError: an unclosed bracket or quote.
    """
    parts, start, depth, quote, escaped = [], 0, 0, "", False
    for at, char in enumerate(inside):
        if quote:
            quote = "" if char == quote and not escaped else quote
            escaped = char == "\\" and not escaped
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


_NUMBERS = {"inf": math.inf, "nan": math.nan}
"""Numbers whose `repr` is a name."""


class _Numbers(ast.NodeTransformer):
    """Replaces the names in `_NUMBERS` by constants."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_NUMBERS[node.id]) if node.id in _NUMBERS else node


def _value(text: str, spec: str) -> Any:
    try:
        value = ast.literal_eval(_Numbers().visit(ast.parse(text, mode="eval")))
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two: nesting is too deep
        if _SPEC.fullmatch(text):
            return text
        raise InputError(f"{text!r} in the spec {spec!r} is neither a literal nor a spec") from None
    _refuse_large(value, spec)
    return value


def _refuse_large(value: Any, spec: str) -> None:
    for each in value if isinstance(value, list | tuple | set) else (value,):
        if isinstance(each, int) and abs(each) >= LARGEST_NUMBER:
            raise InputError(
                f"a number in the spec {spec!r} is too large: whole numbers are below {LARGEST_NUMBER:,}"
            )


def trust_modules(*modules: str) -> None:
    """Allow specs to name parts of these modules as `module:Name`."""
    _trusted.update(modules)


def trusted() -> tuple[str, ...]:
    """Return the trusted modules, to pass on to another process."""
    return tuple(sorted(_trusted))


def modules_of(specs: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct modules that specs name: `gcn(then=mine:Mean)` names `mine`."""
    return tuple(dict.fromkeys(module for spec in specs for module, name in _CODE.findall(spec) if name))


def trust_specs(*specs: str) -> None:
    """Trust the modules in specs that the user typed or a user's program created."""
    trust_modules(*modules_of(specs))


def refuse_untrusted(spec: str, *, where: str) -> None:
    """Check that a spec and its nested specs name no untrusted module; nothing is imported.

    Args:
        spec: as read.
        where: the file and its field, for the message.

    Raises:
        InputError: an untrusted module.
    """
    for module in modules_of([spec]):
        if module not in _trusted:
            raise InputError(
                f"{where}: {spec!r} names code of the module {module}; files may name only registered parts and "
                f"installed plug-ins. If you trust this code, add --trust {module} "
                f"(in Python, trust=({module!r},))"
            )


def load_part(target: str, *, kind: str = "part", origin: str = "") -> Any:
    """Import `module:Name`; the caller checks that the module is trusted.

    Args:
        target: `module:Name`.
        kind: its name in messages.
        origin: suffix of the name in messages, such as the package of a plug-in.

    Raises:
        InputError: the import fails, or the module has no such name.
    """
    if not (match := _CODE.fullmatch(target)) or not match[2]:
        raise InputError(
            f"cannot load the {kind} {target!r}{origin}: expected module:Name, a class or function of the module itself"
        )
    module, name = match.groups()
    try:
        return getattr(importlib.import_module(module), name)
    except PLUG_IN_ERRORS as error:
        here = (
            isinstance(error, ModuleNotFoundError) and Path(*module.split(".")).with_suffix(".py").is_file()
        )
        hint = (
            "; `python -m polypool` finds modules of the current folder, `polypool` does not" if here else ""
        )
        raise InputError(
            f"cannot load the {kind} {target!r}{origin}: {type(error).__name__}: {error}{hint}"
        ) from error


def trust_flags(modules: Iterable[str]) -> list[str]:
    """Return the command-line flags that trust modules."""
    return [word for module in modules for word in ("--trust", module)]
