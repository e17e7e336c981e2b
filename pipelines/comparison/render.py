"""A table of text, and how it looks in a terminal, in Markdown and in LaTeX."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

WIDTH = 120
ABSENT = "\u2013"  # an en dash
_GAP = 2  # blanks between columns, one of which is rich's divider
_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "·": r"$\cdot$",
    ABSENT: "--",
    "*": "$^{*}$",
    "<": "$<$",
    ">": "$>$",
    "\u2212": "$-$",
}


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table.

    Attributes:
        title: what stands above it.
        legend: sentences under the title, without full stops.
        header: the columns' names, of several lines each where they hold line breaks.
        rows: a label and the cells; spaces in cells align them in a terminal and mean nothing elsewhere.
        notes: sentences under the table.
        best: cells, as row and column, that LaTeX sets in bold.
    """

    title: str
    legend: tuple[str, ...] = ()
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    best: frozenset[tuple[int, int]] = frozenset()
    label: int = 16
    """Columns of a terminal that long labels keep, before a table's last columns go below instead."""


def as_text(table: Table) -> str:
    """Return an aligned table of at most `WIDTH` columns: long labels are wrapped, and too many columns go below."""
    lines = [table.title, *(line for said in table.legend for line in textwrap.wrap(said, WIDTH))]
    for columns in _parts(table):
        lines += ["", *_aligned([[cells[k] for k in (0, *columns)] for cells in (table.header, *table.rows)])]
    if table.notes:
        lines += ["", *(line for note in table.notes for line in textwrap.wrap(note, WIDTH))]
    return "\n".join(lines)


def _widths(table: Table) -> list[int]:
    return [
        max(map(cell_len, "\n".join(column).split("\n")))
        for column in zip(table.header, *table.rows, strict=True)
    ]


def _parts(table: Table) -> Iterator[list[int]]:
    """Yield the columns beside the label that fit beside each other."""
    label, *widths = _widths(table)
    room = used = WIDTH - min(table.label, label)
    columns: list[int] = []
    for column, width in enumerate(widths, start=1):
        if columns and width + _GAP > used:
            yield columns
            columns, used = [], room
        columns.append(column)
        used -= width + _GAP
    yield columns


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a header and rows, of which the first column alone is wrapped where there is no room."""
    height = max(cell.count("\n") for cell in rows[0])
    header, *body = [["\n" * (height - cell.count("\n")) + cell for cell in rows[0]], *rows[1:]]
    made = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    for at, (name, column) in enumerate(zip(header, zip(*rows, strict=True), strict=True)):
        # rich strips what is right-aligned, and the blanks after numbers without a star keep them in line
        width = max(map(cell_len, "\n".join(column).split("\n"))) if at else None
        made.add_column(Text(name), justify="right" if at else "left", no_wrap=bool(at), min_width=width)
        body = [[*cells[:at], cells[at].rjust(width or 0), *cells[at + 1 :]] for cells in body]
    for cells in body:
        made.add_row(*(Text(cell, justify="left") for cell in cells))
    out = Console(file=StringIO(), width=WIDTH, color_system=None, force_terminal=False)
    out.print(made)
    return [line.rstrip() for line in out.file.getvalue().splitlines()]


def as_markdown(table: Table, *, level: int = 2) -> str:
    """Return a Markdown table under a heading."""
    rows = [[" ".join(name.split()) for name in table.header]]
    rows += [[f"`{label}`", *(" ".join(cell.split()) for cell in cells)] for label, *cells in table.rows]
    lines = [
        "| " + " | ".join(text.replace("|", "\\|").replace("*", "\\*") for text in row) + " |" for row in rows
    ]
    lines.insert(1, "|---|" + "---:|" * (len(table.header) - 1))
    parts = [f"{'#' * level} {table.title}"]
    if table.legend:
        said = (f"{text[0].upper()}{text[1:]}." for text in table.legend)
        parts.append(" ".join(said).replace("*", "\\*"))
    parts.append("\n".join(lines))
    if table.notes:
        parts.append("\n".join(f"- {note}" for note in table.notes))
    return "\n\n".join(parts)


def as_latex(table: Table) -> str:
    """Return a LaTeX table with booktabs' rules."""
    cells = [[_tex(" ".join(name.split())) for name in table.header]]
    for at, (label, *numbers) in enumerate(table.rows):
        row = [_typewriter(label), *(_tex(" ".join(number.split())) for number in numbers)]
        cells.append([rf"\textbf{{{text}}}" if (at, k) in table.best else text for k, text in enumerate(row)])
    header, *body = (f"{' & '.join(row)} \\\\" for row in cells)
    caption = ". ".join(f"{said[0].upper()}{said[1:]}" for said in (table.title, *table.legend, *table.notes))
    return "\n".join(
        [
            r"\begin{table}[t]",
            r"\centering",
            rf"\caption{{{_tex(caption)}.}}",
            rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}",
            r"\toprule",
            header,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def _tex(text: str) -> str:
    text = re.sub(r"(?<![\w)\]])-(?=\d)", "\u2212", text)  # a minus, not the hyphen of a range or a name
    return "".join(_LATEX.get(sign, sign) for sign in text)


def _typewriter(label: str) -> str:
    return rf"\texttt{{{_tex(label)}}}"
