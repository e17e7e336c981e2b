"""Names for the parts a run is made of, and the specs that call them: `kmax(k=5)`.

A part is registered by a decorator in its own file, by another package's entry point, or named
directly as `module:Name`. Files and entry points are imported on first use, so adding a part touches
no list.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from infra.errors import InputError, unknown

T = TypeVar("T")
_SPEC = re.compile(r"\s*([A-Za-z_][\w.\-]*(?::[A-Za-z_][\w.]*)?)\s*(?:\((.*)\))?\s*", re.DOTALL)
_PARAM = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(.+?)\s*", re.DOTALL)


@dataclass(frozen=True)
class Spec:
    """A name and the parameters given to it; `str` gives it back in the form it was read from."""

    name: str
    params: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Spec:
        """Read `name` or `name(key=value, ...)`.

        A value is a Python literal or another spec, which stays a string. Nothing is evaluated.

        Raises:
            InputError: the text is not a spec.
        """
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
        return cls(name, params)

    def __str__(self) -> str:
        inside = ", ".join(
            f"{key}={value if isinstance(value, str) and _SPEC.fullmatch(value) else repr(value)}"
            for key, value in self.params.items()
        )
        return f"{self.name}({inside})" if inside else self.name


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
    except (ValueError, SyntaxError):
        if _SPEC.fullmatch(text):
            return text
        raise InputError(f"{text!r} in the spec {spec!r} is neither a literal nor a spec") from None


class Registry:
    """The parts of one kind.

    Args:
        kind: what a part is called in messages, such as `aggregator`.
        package: the package whose modules register the built-in parts; imported on first use.
        plural: names the entry points of plug-ins, `polypool.<plural>`; the kind with an s where empty.
    """

    def __init__(self, kind: str, *, package: str, plural: str = "") -> None:
        self.kind = kind
        self.package = package
        self.group = f"polypool.{plural or kind + 's'}"
        self._parts: dict[str, Any] = {}
        self._plugins: dict[str, EntryPoint] | None = None

    def register(self, name: str) -> Callable[[T], T]:
        """Decorate a class or function to be found as `name`; a name in use is an error."""

        def add(part: T) -> T:
            known = self._parts.get(name)
            if known is not None and (known.__module__, known.__qualname__) != (
                part.__module__,
                part.__qualname__,
            ):
                raise InputError(
                    f"two {self.kind}s are called {name!r}: {_place(known)} and {_place(part)}; rename one of them"
                )
            self._parts[name] = part
            return part

        return add

    def names(self) -> list[str]:
        """Every name that can be used, built-in and plugged in."""
        self._discover()
        return sorted({*self._parts, *self._plugins})

    def get(self, name: str) -> Any:
        """Return the part called `name`, or the one at `module:Name`.

        Raises:
            InputError: there is none (the message lists those that exist), or its import failed.
        """
        if ":" in name:
            return _load(self.kind, name)
        self._discover()
        if name not in self._parts and name in self._plugins:
            point = self._plugins[name]
            self._parts[name] = _load(self.kind, point.value, plugin=point)
        if name not in self._parts:
            raise unknown(self.kind, name, self.names())
        return self._parts[name]

    def build(self, spec: str, *args: Any, **given: Any) -> Any:
        """Call the part that `spec` names with its parameters, after `args` and `given`.

        Raises:
            InputError: an unknown name, an unknown or missing parameter, or a value that the part refuses.
        """
        parsed = Spec.parse(spec)
        part = self.get(parsed.name)
        signature = inspect.signature(part)
        free = [
            p.name for p in signature.parameters.values() if p.kind == p.KEYWORD_ONLY and p.name not in given
        ]
        for key in parsed.params:
            if key not in free:
                raise unknown(f"parameter of {self.kind} {parsed.name!r}:", key, free)
        try:
            signature.bind(*args, **given, **parsed.params)
        except TypeError as error:
            raise InputError(f"{self.kind} {spec!r}: {error}") from None
        try:
            return part(*args, **given, **parsed.params)
        except InputError:
            raise
        except (ValueError, TypeError) as error:
            if not parsed.params:
                raise
            raise InputError(f"{self.kind} {spec!r}: {error}") from error

    def _discover(self) -> None:
        if self._plugins is not None:
            return
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(getattr(package, "__path__", [])):
            importlib.import_module(f"{self.package}.{module.name}")
        self._plugins = {}
        for point in entry_points(group=self.group):
            if point.name in self._parts or point.name in self._plugins:
                other = self._plugins.get(point.name)
                raise InputError(
                    f"two {self.kind}s are called {point.name!r}: the entry point {point.value} and "
                    f"{other.value if other else _place(self._parts[point.name])}; rename or uninstall one of them"
                )
            self._plugins[point.name] = point


def _place(part: Any) -> str:
    return f"{part.__module__}:{part.__qualname__}"


def _load(kind: str, target: str, *, plugin: EntryPoint | None = None) -> Any:
    origin = (
        f" (plugged in as {plugin.name!r} by {plugin.dist.name if plugin.dist else 'a package'})"
        if plugin
        else ""
    )
    module, _, path = target.partition(":")
    try:
        part: Any = importlib.import_module(module)
        for name in path.split("."):
            part = getattr(part, name)
    except Exception as error:  # a plug-in may raise anything; it is named and the rest goes on
        raise InputError(
            f"cannot load the {kind} {target!r}{origin}: {type(error).__name__}: {error}"
        ) from error
    return part


TASKS = Registry("task", package="tasks")
ENCODERS = Registry("encoder", package="encoders")
BACKBONES = Registry("backbone", package="encoders.backbones")
AGGREGATORS = Registry("aggregator", package="aggregators")
CROSS_ENCODERS = Registry("cross-modal encoder", package="encoders.cross", plural="cross_encoders")
SIMILARITIES = Registry("similarity", package="tasks.similarities", plural="similarities")
OBJECTIVES = Registry("objective", package="tasks.objectives")
REGULARISERS = Registry("regulariser", package="tasks.regularisers")
AUGMENTATIONS = Registry("augmentation", package="tasks.augmentations")
RECIPES = Registry("recipe", package="pipelines.recipes")
MODELS = Registry("model", package="tasks.matching")
FUSIONS = Registry("fusion", package="tasks.fusions")
PARSERS = Registry("role parser", package="tasks.parsers", plural="parsers")
