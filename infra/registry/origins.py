"""The packages that provide a run's plugged-in parts, recorded with its settings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from typing import Annotated, Any

from polypool.infra.errors import InputError
from polypool.infra.fields import Rule, from_plain
from polypool.infra.registry import KINDS
from polypool.infra.spec import Spec

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
