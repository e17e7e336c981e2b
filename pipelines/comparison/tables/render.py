"""A table of text, and how it looks in a terminal, in Markdown and in LaTeX."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from infra.tables import GAP, aligned, cell_width

WIDTH = 120
ABSENT = "\u2013"  # an en dash
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
        rows: a label and the entries beside it; spaces in entries align them in a terminal and mean nothing elsewhere.
        notes: sentences under the table.
        best: entries, as row and column, that LaTeX sets in bold.
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
    lines = [table.title, *(line for text in table.legend for line in textwrap.wrap(text, WIDTH))]
    lines += ["", text_rows(table)]
    if table.notes:
        lines += ["", *(line for note in table.notes for line in textwrap.wrap(note, WIDTH))]
    return "\n".join(lines)


def text_rows(table: Table) -> str:
    """Return the rows of an aligned table under its header, and nothing around them."""
    lines: list[str] = []
    for columns in _parts(table):
        header, *rows = [[entries[k] for k in (0, *columns)] for entries in (table.header, *table.rows)]
        lines += ["", *aligned(header, rows, width=WIDTH)]
    return "\n".join(lines[1:])


def _parts(table: Table) -> Iterator[list[int]]:
    """Yield the columns beside the label that fit beside each other."""
    label, *widths = [cell_width(column) for column in zip(table.header, *table.rows, strict=True)]
    room = left = WIDTH - min(table.label, label)
    columns: list[int] = []
    for column, width in enumerate(widths, start=1):
        if columns and width + GAP > left:
            yield columns
            columns, left = [], room
        columns.append(column)
        left -= width + GAP
    yield columns


def markdown_rows(table: Table) -> str:
    """Return a Markdown table, and nothing around it."""
    rows = [[" ".join(name.split()) for name in table.header]]
    rows += [
        [f"`{label}`", *(" ".join(entry.split()) for entry in entries)] for label, *entries in table.rows
    ]
    lines = [
        "| " + " | ".join(text.replace("|", "\\|").replace("*", "\\*") for text in row) + " |" for row in rows
    ]
    lines.insert(1, "|---|" + "---:|" * (len(table.header) - 1))
    return "\n".join(lines)


def as_markdown(table: Table, *, level: int = 2) -> str:
    """Return a Markdown table under a heading."""
    parts = [f"{'#' * level} {table.title}"]
    if table.legend:
        sentences = (f"{text[0].upper()}{text[1:]}." for text in table.legend)
        parts.append(" ".join(sentences).replace("*", "\\*"))
    parts.append(markdown_rows(table))
    if table.notes:
        parts.append("\n".join(f"- {note}" for note in table.notes))
    return "\n\n".join(parts)


def as_latex(table: Table) -> str:
    """Return a LaTeX table with booktabs' rules."""
    entries = [[_tex(" ".join(name.split())) for name in table.header]]
    for at, (label, *numbers) in enumerate(table.rows):
        row = [_typewriter(label), *(_tex(" ".join(number.split())) for number in numbers)]
        entries.append(
            [rf"\textbf{{{text}}}" if (at, k) in table.best else text for k, text in enumerate(row)]
        )
    header, *body = (f"{' & '.join(row)} \\\\" for row in entries)
    legend = (f"{text[0].upper()}{text[1:]}" for text in (*table.legend, *table.notes))
    caption = ". ".join((table.title, *legend))  # the title begins with a name, which stays as it is written
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
