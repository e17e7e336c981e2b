"""Paths on the command line: `file:///x` is `/x` to every verb."""

from __future__ import annotations

from pathlib import Path

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from infra.storage.places import local


def path_arguments() -> ConstructorRegistry:
    """Return what has tyro read arguments of the type `Path`, as a context.

    Other URLs pass as they are: whoever opens what they name takes or refuses them.
    """
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def path(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
        if info.type is not Path:
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="PATH",
            instance_from_str=lambda words: _path(words[0]),
            is_instance=lambda value: isinstance(value, Path),
            str_from_instance=lambda value: [str(value)],
        )

    return registry


def _path(text: str) -> Path:
    return local(text) if text.lower().startswith("file:/") else Path(text)
