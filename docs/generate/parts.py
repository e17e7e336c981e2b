"""What a part's code says of it: its docstring and the parameters of its constructor, as Markdown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import docstring_parser

from infra.errors import InputError
from infra.registry import Registry

_FROM_OUTSIDE = {"dim", "assets", "run"}
"""What a part is given beside the parameters of its spec: the width of elements, what a checkpoint holds, the run."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter that a spec sets.

    Attributes:
        name: of it.
        type: as the constructor's annotation has it.
        default: as Python writes it; empty for none.
        meaning: what the docstring says of it.
    """

    name: str
    type: str
    default: str
    meaning: str


def prose_of(part: Any) -> str:
    """Return what the docstring of a part says, without its sections."""
    parsed = _parsed(inspect.getdoc(part))
    return "\n\n".join(filter(None, (parsed.short_description, parsed.long_description)))


def _parsed(text: str | None) -> docstring_parser.Docstring:
    return docstring_parser.parse(text or "", docstring_parser.DocstringStyle.GOOGLE)


def first_line(part: Any) -> str:
    """Return the first line of a docstring: of its module for a part that has none of its own."""
    return (inspect.getdoc(part) or "").partition("\n")[0]


def parameters_of(part: Any) -> list[Parameter]:
    """Return the parameters that a spec of a part can set, in the order of its constructor.

    Raises:
        InputError: the docstring leaves one out.
    """
    meanings: dict[str, str] = {}
    for base in getattr(part, "__mro__", (part,)):  # a class says what it adds to those that it derives from
        for of in _parsed(base.__doc__).params:
            meanings.setdefault(of.arg_name, of.description or "")
    found = []
    for name, of in inspect.signature(part).parameters.items():
        if of.kind is not of.KEYWORD_ONLY or name in _FROM_OUTSIDE:
            continue
        if name not in meanings:
            raise InputError(
                f"{part.__module__}:{part.__qualname__} does not say what {name} is; add it to Args"
            )
        default = "" if of.default is of.empty else repr(of.default)
        kind = "" if of.annotation is of.empty else str(of.annotation)
        found.append(Parameter(name=name, type=kind, default=default, meaning=meanings[name]))
    return found


def parameter_table(parameters: Sequence[Parameter]) -> str:
    """Return a table of parameters, or a sentence where there are none."""
    if not parameters:
        return "It has no parameters."
    rows = [(f"`{of.name}`", code(of.type), code(of.default), of.meaning) for of in parameters]
    return table(("parameter", "type", "default", "what it is"), rows)


def part_list(registry: Registry) -> str:
    """Return a table of the parts of a kind: names, what each is, and its parameters with their defaults."""
    rows = []
    for name, part in registry.usable():
        given = [
            f"{each}={of.default!r}" if of.default is not of.empty else each
            for each, of in inspect.signature(part).parameters.items()
            if of.kind is of.KEYWORD_ONLY and each not in _FROM_OUTSIDE
        ]
        rows.append((f"`{name}`", first_line(part), code(", ".join(given))))
    return table((registry.kind, "what it is", "parameters"), rows)


def code(text: str) -> str:
    """Return text as code; nothing of nothing."""
    return f"`{text}`" if text else ""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = ()) -> str:
    """Return a table in Markdown.

    Args:
        heads: of the columns.
        rows: of cells, which may be Markdown of one paragraph.
        right: numbers of the columns that are set to the right.
    """
    to_the_right = {*right}
    lines = [heads, ["---:" if k in to_the_right else "---" for k in range(len(heads))]]
    lines += [[_cell(cell) for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\|", " ".join(text.split()))
