"""What aggregators compute, as formulas, from `docs/formulas.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.errors import InputError
from infra.registry import AGGREGATORS

FILE = "docs/formulas.toml"
_INLINE = re.compile(r"\$(.+?)\$")


@dataclass(frozen=True, kw_only=True)
class Formulas:
    """Formulas of an aggregator, in LaTeX.

    Attributes:
        lines: each a formula.
        where: what their letters are, with formulas between dollar signs.
    """

    lines: tuple[str, ...]
    where: str

    def shown(self) -> str:
        """Return them in MyST's Markdown."""
        blocks = [f"```{{math}}\n{line}\n```" for line in self.lines]
        return "\n\n".join([*blocks, _INLINE.sub(r"{math}`\1`", self.where)])


def formulas(root: Path) -> Mapping[str, Formulas]:
    """Return the formulas of each registered aggregator, by name.

    Args:
        root: of the repository.

    Raises:
        InputError: one has none, or what has some is not registered.
    """
    read = tomllib.loads((root / FILE).read_text())
    common = read.pop("common")
    if sorted(read) != AGGREGATORS.names():
        odd = ", ".join(sorted({*read} ^ {*AGGREGATORS.names()}))
        raise InputError(f"{FILE}: its tables are not of the aggregators that are registered: {odd}")
    return {
        name: Formulas(lines=tuple(given["formulas"]), where=_said(common, given.get("where", "")))
        for name, given in read.items()
    }


def _said(common: str, where: str) -> str:
    """Return what letters are: those of all, and, as a sentence, those of one."""
    return f"{common} Here {where}." if where else common
