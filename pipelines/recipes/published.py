"""Published numbers of the papers, from `published.yaml`: by table and row, with the reproducing recipe."""

from __future__ import annotations

import functools
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from polypool.infra.fields import from_plain

PUBLISHED = Path(__file__).with_name("published.yaml")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a published table or figure.

    Args:
        row: its name there.
        recipe: recipe that reproduces it; empty if `command` does.
        changes: changed settings of the recipe.
        command: words of another verb than `train`.
        numbers: in the order of the table's columns; empty for figures.
    """

    row: str
    recipe: str = ""
    changes: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    numbers: tuple[float, ...] = ()

    @property
    def words(self) -> str:
        """The command that reproduces the row, without `polypool`."""
        flags = (x for name, value in self.changes.items() for x in (f"--{name.replace('_', '-')}", value))
        return self.command or shlex.join(("train", self.recipe, *flags))


@dataclass(frozen=True, kw_only=True)
class Table:
    """A published table or figure under one protocol.

    Args:
        name: of the table, such as `table 10`.
        protocol: protocol of the columns; empty if the columns name theirs.
        about: how the rows differ, and notes on reading the paper's table.
        columns: metrics; empty for figures.
        rows: its rows.
    """

    name: str
    protocol: str = ""
    about: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[Row, ...]

    def numbers(self, row: Row) -> dict[str, float]:
        """Return the numbers of a row by protocol and metric, such as `{"coco-5k/rsum": 421.9}`."""
        metrics = (f"{self.protocol}/{name}" if self.protocol else name for name in self.columns)
        return dict(zip(metrics, row.numbers, strict=True))


@functools.cache
def papers() -> dict[str, tuple[Table, ...]]:
    """Return the tables of each paper by its short name, such as `VSE-infinity`."""
    values = yaml.load(PUBLISHED.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {name: from_plain(tuple[Table, ...], tables, where=name) for name, tables in values.items()}


def rows_of(recipe: str) -> list[tuple[str, Table, Row]]:
    """Return the rows with numbers that a recipe reproduces, with or without changes, each with its paper and table."""
    return [
        (paper, table, row)
        for paper, tables in papers().items()
        for table in tables
        for row in table.rows
        if row.recipe == recipe and row.numbers
    ]


def together(rows: Iterable[tuple[str, Table, Row]]) -> tuple[dict[str, float], str]:
    """Return the numbers of several rows, and their source, such as `VSE-infinity, tables 2 and 9, table 10`."""
    numbers, tables = dict[str, float](), defaultdict[str, dict[str, None]](dict)
    for paper, table, row in rows:
        numbers |= table.numbers(row)
        tables[paper][table.name] = None
    return numbers, "; ".join(f"{paper}, {', '.join(names)}" for paper, names in tables.items())
