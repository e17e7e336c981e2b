"""Discovery of parts by decorators in source files, without import, and by entry points."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from polypool.infra.errors import InputError
from polypool.infra.spec import load_part


def registered(source: Path, decorator: str) -> Iterator[tuple[str, str]]:
    """Yield the registered and the Python names of a file's parts, without importing or parsing it."""
    yield from re.findall(
        rf"""^@{re.escape(decorator)}\(\s*["'](.+?)["'](?:.*\n)+?(?:class|def) (\w+)""",
        source.read_text(),
        re.MULTILINE,
    )


def annotated(source: Path) -> Iterator[tuple[str, str]]:
    """Yield name and type of each path parameter (`polypool.infra.paths`) in a file, without importing it."""
    yield from re.findall(r"\b(\w+): (FilePath|ModelName)\b", source.read_text())


def place(part: Any) -> str:
    """Return `module:Name` of a part, or of the class of an object."""
    named = part if hasattr(part, "__qualname__") else type(part)
    return f"{named.__module__}:{named.__qualname__}"


def target(point: EntryPoint) -> str:
    """Return the `module:Name` of an entry point."""
    return "".join(point.value.split())


def origin(point: EntryPoint) -> str:
    """Return the package, version and target of an entry point."""
    package = f"{point.dist.name} {point.dist.version}" if point.dist else "a package"
    return f"{package} ({target(point)})"


def load_quietly(point: EntryPoint) -> Any:
    """Load an entry point; None if the import fails."""
    with suppress(InputError):
        return load_part(target(point))


def described(part: Any) -> str:
    """Return the kind of object that a part is, for a message."""
    if isinstance(part, type):
        return f"the class {part.__name__}"
    return "a function" if callable(part) else f"a value of type {type(part).__name__}"
