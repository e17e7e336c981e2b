"""A page for each registered aggregator, and the list of all."""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from aggregators.base import Aggregator
from docs.generate.formulas import Formulas
from docs.generate.links import FILES
from docs.generate.parts import parameter_table, parameters_of, prose_of, table
from docs.generate.recipes import described, uses_aggregator
from docs.generate.results import results_of
from infra.errors import InputError
from infra.registry import AGGREGATORS

README = "aggregators/README.md"
"""Its table has a row for each aggregator: idea, source, what it needs, and what it costs."""
WIDTH = 1024
_ROW = re.compile(r"^\| `(\w+)` \|(.*)\|$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What the table of `aggregators/README.md` says of an aggregator."""

    name: str
    idea: str
    source: str
    needs: str
    parameters: str
    weights: str
    cost: str

    @cached_property
    def part(self) -> type[Aggregator]:
        """Its class."""
        return AGGREGATORS.get(self.name)

    @property
    def room(self) -> str:
        """The package it lies in, such as `aggregators.ranks`."""
        return self.part.__module__.rpartition(".")[0]


def listings(root: Path) -> list[Listing]:
    """Return a listing for each registered aggregator, in the order of the README's table.

    Raises:
        InputError: the table lacks one, or has one that is not registered.
    """
    rows = _ROW.findall((root / README).read_text())
    if sorted(name for name, _ in rows) != AGGREGATORS.names():
        raise InputError(f"{README}: its table is not of the aggregators that are registered")
    return [
        Listing(
            name=name,
            **dict(
                zip(
                    ("idea", "source", "needs", "parameters", "weights", "cost"),
                    (cell.strip() for cell in row.split("|")),
                    strict=True,
                )
            ),
        )
        for name, row in rows
    ]


def list_page(root: Path) -> str:
    """Return the list of all by their rooms, with what the README says around its table, and its links."""
    title, text = (root / README).read_text().split("\n", 1)
    before, after = re.split(r"(?:^\|.*\n)+", text, maxsplit=1, flags=re.MULTILINE)
    rooms: dict[str, list[Listing]] = {}
    for listing in listings(root):
        rooms.setdefault(listing.room, []).append(listing)
    parts = [title, before.strip()]
    for room, members in rooms.items():
        about = inspect.getdoc(importlib.import_module(room)) or ""
        rows = [
            (
                f"[`{of.name}`]({page_file(of.name)})",
                of.idea,
                of.source,
                of.needs,
                of.weights,
                of.cost,
            )
            for of in members
        ]
        heads = ("name", "idea", "source", "needs", f"weights at width {WIDTH}", "cost")
        parts += [f"## {room.rpartition('.')[2].capitalize()}", about, table(heads, rows, right=(4, 5))]
    pages = "\n".join(of.name for members in rooms.values() for of in members)
    parts += ["## More", after.strip(), f"```{{toctree}}\n:hidden:\n\n{pages}\n```"]
    return "\n\n".join(parts) + "\n"


def page_file(name: str) -> str:
    """Return the file of an aggregator's page, from the folder of pages of aggregators."""
    return f"{name}.md"


def file_of(listing: Listing, root: Path) -> str:
    """Return the file of an aggregator's code, from the repository's root."""
    return Path(inspect.getfile(listing.part)).relative_to(root).as_posix()


def page(listing: Listing, root: Path, *, formulas: Formulas, figure: tuple[str, str] | None) -> str:
    """Return the page of an aggregator.

    Args:
        listing: what the README says of it.
        root: of the repository.
        formulas: what it computes.
        figure: the file of the figure of its weights, from the page, and what that shows; None where it has no weights.
    """
    part = listing.part
    parameters = parameters_of(part)
    idea = f"{listing.idea[0].upper()}{listing.idea[1:]}."
    source = f" Source: {listing.source}." if listing.source else ""
    parts = [
        f"# `{listing.name}`",
        f"*{idea}*{source}",
        prose_of(part),
        f"    --aggregator {listing.name}",
        _promises(part, listing),
        f"{prose_of(part.forward)}",
        "## Formula",
        formulas.shown(),
        "## Parameters",
        parameter_table(parameters),
    ]
    if figure:
        file, shown = figure
        alt = f"Weights that {listing.name} gives before training"
        parts += [
            "## Weights",
            f"Of the default parameters, before anything is learnt. {shown}",
            f"![{alt}]({file})",
        ]
    parts += ["## Cost", _cost(listing)]
    if results := results_of(listing.name, root / "pipelines/results"):
        parts += ["## Results", results]
    if recipes := uses_aggregator(listing.name):
        parts += ["## Recipes", described(recipes)]
    file = file_of(listing, root)
    parts += ["## Code", f"`{file}`", f"```{{literalinclude}} /{FILES}/{file}\n:language: python\n```"]
    return "\n\n".join(filter(None, parts)) + "\n"


def _promises(part: type[Aggregator], listing: Listing) -> str:
    """Say what others rely on, in words; of the default parameters."""
    with torch.device("meta"):
        module = AGGREGATORS.build(listing.name, WIDTH)
    k = module.num_embeddings
    made = {None: "as many vectors as the set needs", 1: "one vector"}.get(k, f"{k} vectors")
    if module.makes == "distribution":
        made = "a distribution, as a mean and the logarithm of a variance"
    facts = [f"makes {made} of a set"]
    facts += [] if module.symmetric else ["heeds the order of the elements"]
    facts += {
        "none": [],
        "set": ["looks at the elements of the other modality"],
        "vector": ["looks at a vector of the other modality"],
    }[module.context]
    facts += ["takes a vector of the whole where an encoder makes one"] if module.takes_global_feature else []
    return f"It {'; it '.join(facts)}."


def _cost(listing: Listing) -> str:
    cost = listing.cost.strip("*")
    how = ", in processor time of one thread for sets of 36 x 384" if "*" in listing.cost else ""
    return (
        f"{listing.weights} weights at width {WIDTH:,}. Forward and backward take {cost} times as long as those of "
        f"`mean`{how} ([how it is measured](README.md))."
    )
