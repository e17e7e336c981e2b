"""Markdown tables of parts: names, docstrings, and the parameters of their constructors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import docstring_parser
import torch

from polypool.aggregators.aggregator import Aggregator
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS, Registry

_GIVEN = {"assets", "run"}
"""Arguments that no spec sets: assets of a checkpoint, the run."""


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


def aggregator_list(page: Path) -> str:
    """Return the table of aggregators in the order of a page, new ones last.

    The columns `source` and `cost`, a measured time, are written by hand and kept from the page.
    """
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in page.read_text().splitlines()]
    kept = {cells[0].strip(" `"): (cells[2], cells[-1]) for cells in lines if len(cells) == len(_COLUMNS)}
    own = AGGREGATORS.built_in()
    rows = []
    for name in sorted(own, key=lambda name: [*kept, *own].index(name)):
        part = AGGREGATORS.get(name)
        source, cost = kept.get(name, ("", ""))
        with torch.device("meta"):
            module = AGGREGATORS.build(name, 1024)
        weights = f"{sum(weight.numel() for weight in module.parameters()):,}"
        given = [f"{of.name}={of.default}" for of in _settable(part)]
        parameters = code(", ".join([*given[:3], *["..."][: len(given) - 3]]))
        rows.append(
            (code(name), first_line(part), source, _needs(module), _vectors(name), parameters, weights, cost)
        )
    return table(_COLUMNS, rows, right=(6, 7))


_COLUMNS = ("aggregator", "meaning", "source", "needs", "vectors", "parameters", "weights", "cost")


def _needs(module: Aggregator) -> str:
    context = {"none": "", "set": "text set", "vector": "text vector"}[module.context]
    facts = (context, "order" * (not module.symmetric), "global" * module.takes_global_feature)
    return ", ".join(filter(None, facts))


def _vectors(name: str) -> str:
    """Return the number of vectors of a set, empty for one."""
    k = "(k=2)" * any(of.name == "k" for of in _settable(AGGREGATORS.get(name)))
    with torch.device("meta"):
        module = AGGREGATORS.build(f"{name}{k}", 1024)
    if module.makes == "distribution":
        return "distribution"
    return {1: "", None: "varies"}.get(module.num_embeddings, "K")


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = ()) -> str:
    """Return a Markdown table; cells are Markdown of one paragraph, and columns `right` are aligned to the right."""
    to_the_right = {*right}
    lines = [heads, ["---:" if k in to_the_right else "---" for k in range(len(heads))]]
    lines += [[re.sub(r"(?<!\\)\|", r"\|", " ".join(cell.split())) for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
