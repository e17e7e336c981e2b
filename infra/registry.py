"""Registries of the parts of a run, by name.

A part is registered by a decorator in its file or by another package's entry point, or named as `module:Name` if the
module is trusted (`infra.spec`). Names of built-in parts are read from the decorators in their files, and files
and entry points are imported on first use of their parts, so that listing names does not import torch. A plug-in that
cannot be imported, or uses a taken name, is an error only when that name is used.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from polypool.infra.errors import InputError, unknown
from polypool.infra.extras import needed
from polypool.infra.fields import Rule, check_value, from_plain
from polypool.infra.paths import FilePath, ModelName, located
from polypool.infra.spec import Spec, load_part, refuse_untrusted

__all__ = ["KINDS", "Listed", "Registry", "Spec"]

T = TypeVar("T")

_PATHS = {"FilePath": FilePath, "ModelName": ModelName}
"""Types of parameters that are or may be paths, by the names in annotations."""
_PLAIN = {"int": int, "float": float, "bool": bool, "str": str, **dict.fromkeys(_PATHS, str)}
"""Types of parameters that are checked, by the names in annotations."""
MOST_REPEATED = 1000
"""Upper bound of layers and iterations of a part."""
_REPEATED = ("layers", "iterations")
"""Parameters that count repetitions, such as layers."""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A registered name, its origins (`built in`, or a package and `module:Name`), and an error if it is unusable."""

    name: str
    origins: tuple[str, ...]
    error: str


class _Unimported(NamedTuple):
    """A built-in part: its module, its Python name and its file."""

    module: str
    attribute: str
    source: Path


class Registry:
    """The parts of one kind.

    Args:
        kind: name of the kind in messages, such as `aggregator`.
        package: package whose modules register the built-in parts.
        rooms: its sub-packages with such modules, if not the package itself.
        plural: suffix of the entry points of plug-ins, `polypool.<plural>`; the kind with an s if empty.
        decorator: name of the registering decorator in the files; `<PLURAL>.register` if empty.
        base: `module:Class` from which every part must derive; empty for no check.
        light: import the modules to list their parts (which may come from tables); they must not import heavy packages.
    """

    def __init__(
        self,
        kind: str,
        *,
        package: str,
        rooms: tuple[str, ...] = (),
        plural: str = "",
        decorator: str = "",
        base: str = "",
        light: bool = False,
    ) -> None:
        self.kind, self.base, self.light = kind, base, light
        self.package, self.rooms = package, rooms
        self.group = f"polypool.{plural or kind + 's'}"
        self.decorator = decorator or f"{self.group.partition('.')[2].upper()}.register"
        self._parts: dict[str, Any] = {}
        self._files: dict[str, _Unimported] = {}
        self._plugins: dict[str, list[EntryPoint]] = {}
        self._discovered = False

    @property
    def plural(self) -> str:
        return self.group.partition(".")[2].replace("_", " ")

    def register(self, name: str) -> Callable[[T], T]:
        """Register a class or function as `name`; a taken name is an error."""

        def add(part: T) -> T:
            known = self._parts.get(name)
            if not self._built_in(part):
                self._discover()
                known = known or self._files.get(name)
            if known is not None and import_path(known) != import_path(part):
                raise InputError(
                    f"two {self.plural} are called {name!r}: {import_path(known)} and {import_path(part)}; rename one "
                    "of them"
                )
            self._parts[name] = part
            return part

        return add

    def names(self) -> list[str]:
        """Return all names, built-in and plugged in, including parts that cannot be used."""
        self._discover()
        return sorted({*self._parts, *self._files, *self._plugins})

    def built_in(self) -> list[str]:
        """Return the names of polypool's own parts, independent of plug-ins."""
        self._discover()
        return sorted({*self._files, *(name for name, part in self._parts.items() if self._built_in(part))})

    def usable(self) -> Iterator[tuple[str, Any]]:
        """Yield each usable name with its part."""
        for name in self.names():
            with suppress(InputError):
                yield name, self.get(name)

    @needed()
    def get(self, name: str) -> Any:
        """Return the part called `name`, or the one at `module:Name`, without calling it.

        Raises:
            InputError: an unknown name (the message lists the known ones), a failed import, a duplicate name, an
                untrusted module (see `polypool.infra.spec`), or a part of another kind.
        """
        if ":" in name:
            refuse_untrusted(name, where=self.kind)
            part = load_part(name, kind=self.kind)
            if not self.base and not any(part is known for known in self._parts.values()):
                raise InputError(
                    f"the {self.kind} {name!r} is {kind_of(part)} that is not registered; decorate it with "
                    f"{self.decorator}(NAME)"
                )
        else:
            part = self._named(name)
        if self.base and load_part(self.base) not in getattr(part, "__mro__", ()):
            raise InputError(
                f"the {self.kind} {name!r} is {kind_of(part)}, expected a class that derives from "
                f"{self.base.replace(':', '.')}"
            )
        return part

    def part(self, spec: str | Spec) -> Any:
        """Return the part of a spec without calling it; see `get`."""
        return self.get(Spec.parse(spec).name)

    def _named(self, name: str) -> Any:
        self._discover()
        if name in self._files:
            found = self._files[name]
            self.register(name)(getattr(importlib.import_module(found.module), found.attribute))
        part, points = self._parts.get(name), self._plugins.get(name, [])
        if part is None and not points:
            raise unknown(self.kind, name, self.names())
        if len(points) > 1:
            raise self._duplicate(name)
        if points and (part is None or target(points[0]) != import_path(part)):
            by = f" (plugged in as {name!r} by {provider(points[0]).partition(' (')[0]})"
            plugged = load_part(target(points[0]), kind=self.kind, origin=by)
            part = self._parts.setdefault(name, plugged)  # its module may have registered it
            if part is not plugged:
                raise self._duplicate(name)
        return part

    def listing(self) -> list[Listed]:
        """Return every name with its origins and error; imports every part."""
        found = []
        for name in self.names():
            error = ""
            try:
                self.get(name)
            except InputError as refused:
                error = str(refused)
            found.append(Listed(name=name, origins=self._origins(name), error=error))
        return found

    def _origins(self, name: str) -> tuple[str, ...]:
        points, plugged = self._plugins.get(name, []), []
        for point in points:
            with suppress(InputError):
                plugged.append(load_part(target(point)))
        part = self._parts.get(name)
        own = (
            ()
            if part is None or part in plugged
            else ("built in" if self._built_in(part) else import_path(part),)
        )
        return (*own, *map(provider, points))

    def build(self, spec: str | Spec, *args: Any, **arguments: Any) -> Any:
        """Call the part of a spec with its parameters, after `args` and `arguments`.

        Raises:
            InputError: an unknown name, an unknown or missing parameter, or a value that the part rejects.
        """
        parsed = Spec.parse(spec)
        part = self.get(parsed.name)
        signature = inspect.signature(part)
        free = [
            p.name
            for p in signature.parameters.values()
            if p.kind == p.KEYWORD_ONLY and p.name not in arguments
        ]
        others = [p for p in signature.parameters.values() if p.kind == p.VAR_KEYWORD]  # accepts any name
        for key in parsed.params:
            if key not in free and not (others and key not in signature.parameters):
                raise unknown(f"parameter of {self.kind} {parsed.name!r}:", key, free)
        for key, value in parsed.params.items():
            annotation = (signature.parameters.get(key) or others[0]).annotation
            if kind := _PLAIN.get(getattr(annotation, "__name__", annotation)):
                check_value(value, kind, f"{self.kind} {spec!r}: {key}")
                if key in _REPEATED and value > MOST_REPEATED:
                    raise InputError(f"{self.kind} {spec!r}: {key} must be at most {MOST_REPEATED:,}")
        try:
            signature.bind(*args, **arguments, **parsed.params)
        except TypeError as error:
            raise InputError(f"{self.kind} {spec!r}: {error}") from None
        try:
            return part(*args, **arguments, **parsed.params)
        except InputError:
            raise
        except (
            ValueError,
            TypeError,
            RuntimeError,
            ArithmeticError,
        ) as error:  # including torch's errors about sizes
            if not parsed.params:
                raise
            raise InputError(f"{self.kind} {spec!r}: {error}") from error

    def paths(self, name: str) -> dict[str, Any]:
        """Return the path parameters of a part: `FilePath` or `ModelName` by parameter.

        A built-in part is not imported.
        """
        self._discover()
        if name in self._files:
            # such as `weights: FilePath`
            found = dict(re.findall(r"\b(\w+): (FilePath|ModelName)\b", self._files[name].source.read_text()))
        else:
            parameters = inspect.signature(self.get(name)).parameters.values()
            found = {each.name: each.annotation for each in parameters}
        kinds = {
            key: _PATHS.get(kind, kind) if isinstance(kind, str) else kind for key, kind in found.items()
        }
        return {key: kind for key, kind in kinds.items() if any(kind is each for each in _PATHS.values())}

    def located(self, spec: str, start: Callable[[], Path]) -> str:
        """Return a spec with absolute paths; relative ones refer to the folder that `start` returns."""
        return self.with_paths(spec, lambda path, kind: located(path, kind, start))

    def with_paths(self, spec: str, change: Callable[[str, Any], str]) -> str:
        """Return a spec with transformed paths, including nested specs; an unknown part is returned unchanged.

        Args:
            spec: of a part of this kind.
            change: called with a path and its type, returns the new path.
        """
        parsed = Spec.parse(spec) if spec else Spec("")
        texts = {key: value for key, value in parsed.params.items() if isinstance(value, str) and value}
        if not texts or not (":" in parsed.name or parsed.name in self.names()):
            return spec
        kinds = self.paths(parsed.name)
        changed = {
            key: change(value, kinds[key]) if key in kinds else _nested(value, change)
            for key, value in texts.items()
        }
        return spec if changed == texts else str(Spec(parsed.name, {**parsed.params, **changed}))

    def _discover(self) -> None:
        if self._discovered:
            return
        for package in [f"{self.package}.{room}" for room in self.rooms] or [self.package]:
            spec = find_spec(package)
            for folder in (spec.submodule_search_locations if spec else None) or ():
                for module in pkgutil.iter_modules([folder]):
                    if self.light:
                        importlib.import_module(f"{package}.{module.name}")
                        continue
                    file = f"{module.name}/__init__.py" if module.ispkg else f"{module.name}.py"
                    source = Path(folder, file)
                    registered = (
                        rf"""^@{re.escape(self.decorator)}\(\s*["'](.+?)["'](?:.*\n)+?(?:class|def) (\w+)"""
                    )
                    text = source.read_text() if source.is_file() else ""
                    for name, attribute in re.findall(registered, text, re.MULTILINE):
                        self._files[name] = _Unimported(f"{package}.{module.name}", attribute, source)
        for point in entry_points(group=self.group):
            same = self._plugins.setdefault(point.name, [])
            if all(target(point) != target(other) for other in same):
                same.append(point)
        self._discovered = True

    def _built_in(self, part: Any) -> bool:
        return f"{import_path(part).partition(':')[0]}.".startswith(f"{self.package}.")

    def _duplicate(self, name: str) -> InputError:
        return InputError(
            f"two {self.plural} are called {name!r}: {' and '.join(self._origins(name))}; rename or uninstall one of "
            "them, or select one as module:Name"
        )


def import_path(part: Any) -> str:
    """Return `module:Name` of a part, or of the class of an object."""
    if isinstance(part, _Unimported):
        return f"{part.module}:{part.attribute}"
    named = part if hasattr(part, "__qualname__") else type(part)
    return f"{named.__module__}:{named.__qualname__}"


def target(point: EntryPoint) -> str:
    """Return the `module:Name` of an entry point."""
    return "".join(point.value.split())


def provider(point: EntryPoint) -> str:
    """Return the package, version and target of an entry point."""
    package = f"{point.dist.name} {point.dist.version}" if point.dist else "a package"
    return f"{package} ({target(point)})"


def kind_of(part: Any) -> str:
    """Return the kind of object that a part is, for a message."""
    if isinstance(part, type):
        return f"the class {part.__name__}"
    return "a function" if callable(part) else f"a value of type {type(part).__name__}"


def _nested(value: str, change: Callable[[str, Any], str]) -> str:
    """Return a parameter that may be a spec, with transformed paths."""
    with suppress(InputError):  # an ordinary text
        name = Spec.parse(value).name
        for registry in KINDS.values():
            if name in registry.names():
                value = registry.with_paths(value, change)
    return value


TASKS = Registry("task", package="polypool.tasks", base="polypool.tasks.adapter:TaskAdapter")
ENCODERS = Registry(
    "encoder", package="polypool.encoders", rooms=("visual", "text"), base="polypool.encoders.encoder:Encoder"
)
ADAPTATIONS = Registry(
    "adaptation", package="polypool.encoders.adaptations", base="polypool.encoders.adaptations:Adaptation"
)
BACKBONES = Registry(
    "backbone", package="polypool.encoders.backbones", base="polypool.encoders.backbones:Backbone"
)
AGGREGATORS = Registry(
    "aggregator",
    package="polypool.aggregators",
    rooms=("assignments", "averages", "instances", "queries", "ranks", "relations", "selections", "sets"),
    base="polypool.aggregators.aggregator:Aggregator",
)
CROSS_ENCODERS = Registry(
    "cross-modal encoder", package="polypool.encoders.cross", plural="cross_encoders", base="torch.nn:Module"
)
SIMILARITIES = Registry(
    "similarity",
    package="polypool.tasks.similarities",
    plural="similarities",
    base="polypool.tasks.similarities.similarity:Similarity",
)
OBJECTIVES = Registry(
    "objective", package="polypool.tasks.objectives", base="polypool.tasks.objectives.objective:Objective"
)
MINERS = Registry("miner", package="polypool.tasks.objectives", base="polypool.tasks.objectives.miners:Miner")
REGULARISERS = Registry(
    "regulariser",
    package="polypool.tasks.objectives",
    base="polypool.tasks.objectives.regularisers:Regulariser",
)
AUGMENTATIONS = Registry("augmentation", package="polypool.tasks.inputs")
RECIPES = Registry("recipe", package="polypool.pipelines.recipes", decorator="recipe", light=True)
MODELS = Registry(
    "model",
    package="polypool.tasks",
    rooms=("models", "hgr"),
    base="polypool.tasks.models.retrieval_model:RetrievalModel",
)
FUSIONS = Registry(
    "fusion", package="polypool.tasks.questions", base="polypool.tasks.questions.fusions:Fusion"
)
READERS = Registry(
    "reader",
    package="polypool.tasks.datasets",
    rooms=("readers",),
    base="polypool.tasks.datasets:Reader",
)
OPTIMISERS = Registry("optimiser", package="polypool.pipelines.training", base="torch.optim:Optimizer")

KINDS = {
    "task": TASKS,
    "encoder": ENCODERS,
    "aggregator": AGGREGATORS,
    "adaptation": ADAPTATIONS,
    "backbone": BACKBONES,
    "cross_encoder": CROSS_ENCODERS,
    "similarity": SIMILARITIES,
    "objective": OBJECTIVES,
    "miner": MINERS,
    "regulariser": REGULARISERS,
    "augmentation": AUGMENTATIONS,
    "model": MODELS,
    "fusion": FUSIONS,
    "optimiser": OPTIMISERS,
    "reader": READERS,
    "recipe": RECIPES,
}
"""Every registry, by its kind on the command line."""

ORIGINS = "plugins"
"""Key in the JSON of a run; absent if all parts are built in."""
_NAME = Rule("a package name", lambda text: text.replace("-", "_").replace(".", "_").isidentifier())


@dataclass(frozen=True, kw_only=True)
class Origin:
    """A part by its kind, a key of `KINDS`, and its name, with the package that provides it."""

    kind: str
    name: str
    package: Annotated[str, _NAME]
    version: str


def origins(specs: Iterable[str]) -> list[dict[str, str]]:
    """Return the origins of the plugged-in parts in specs, as JSON."""
    names, points = {Spec.parse(spec).name for spec in specs if spec}, entry_points()
    return [
        asdict(Origin(kind=kind, name=point.name, package=point.dist.name, version=point.dist.version))
        for kind, registry in KINDS.items()
        for point in points.select(group=registry.group)
        if point.dist and point.name in names
    ]


def without_origins(values: Any, *, where: str) -> Any:
    """Return the JSON of a run without its origins.

    Raises:
        InputError: invalid origins, or a package that is not installed.
    """
    if not isinstance(values, dict) or ORIGINS not in values:
        return values
    for of in from_plain(tuple[Origin, ...], values[ORIGINS], where=f"{where}: {ORIGINS}"):
        if of.kind in KINDS and of.name not in KINDS[of.kind].names():
            raise InputError(
                f"{where}: the {of.kind} {of.name!r} came from the package {of.package} {of.version}, which is not "
                f"installed: pip install {of.package}, if that is a package that you trust"
            )
    return {name: value for name, value in values.items() if name != ORIGINS}
