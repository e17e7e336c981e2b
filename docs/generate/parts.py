"""Markdown tables of parts: names, docstrings, and the parameters of their constructors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Any

import docstring_parser

from polypool.infra.errors import InputError
from polypool.infra.registry import Registry

_GIVEN = {"dim", "assets", "run"}
"""Arguments that no spec sets: the width of elements, assets of a checkpoint, the run."""


def prose_of(part: Any) -> str:
    parsed = _parsed(inspect.getdoc(part))
    return "\n\n".join(filter(None, (parsed.short_description, parsed.long_description)))


def first_line(part: Any) -> str:
    return (inspect.getdoc(part) or "").partition("\n")[0]


def _parsed(text: str | None) -> docstring_parser.Docstring:
    return docstring_parser.parse(text or "", docstring_parser.DocstringStyle.GOOGLE)


def _settable(part: Any) -> list[inspect.Parameter]:
    parameters = inspect.signature(part).parameters.values()
    return [of for of in parameters if of.kind is of.KEYWORD_ONLY and of.name not in _GIVEN]


def _default(of: inspect.Parameter) -> str:
    return "" if of.default is of.empty else repr(of.default)


def parameter_table(part: Any) -> str:
    """Return a table of the parameters that a spec can set, or a sentence where there are none.

    Raises:
        InputError: the docstrings of the class and its bases leave one out.
    """
    meanings: dict[str, str] = {}
    for base in getattr(part, "__mro__", (part,)):
        for of in _parsed(base.__doc__).params:
            meanings.setdefault(of.arg_name, of.description or "")
    rows = []
    for of in _settable(part):
        if of.name not in meanings:
            raise InputError(
                f"{part.__module__}:{part.__qualname__} does not document {of.name}; add it to Args"
            )
        kind = "" if of.annotation is of.empty else str(of.annotation)
        rows.append((code(of.name), code(kind), code(_default(of)), meanings[of.name]))
    return table(("parameter", "type", "default", "meaning"), rows) if rows else "It has no parameters."


def part_list(registry: Registry) -> str:
    rows = []
    own = {*registry.built_in()}
    for name, part in registry.usable():
        if name not in own:
            continue
        given = [f"{of.name}={default}" if (default := _default(of)) else of.name for of in _settable(part)]
        rows.append((code(name), first_line(part), code(", ".join(given))))
    return table((registry.kind, "meaning", "parameters"), rows)


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = ()) -> str:
    """Return a Markdown table; cells are Markdown of one paragraph, and columns `right` are aligned to the right."""
    to_the_right = {*right}
    lines = [heads, ["---:" if k in to_the_right else "---" for k in range(len(heads))]]
    lines += [[re.sub(r"(?<!\\)\|", r"\|", " ".join(cell.split())) for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
