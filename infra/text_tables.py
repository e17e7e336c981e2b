"""Tables as text, Markdown and LaTeX; numbers and durations as text."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

WIDTH = 120
"""Maximum width of a `Table` in a terminal, in characters."""
ABSENT = "\u2013"  # an en dash
_GAP = 2  # blanks between columns
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
_LATEX_TABLE = r"""\begin{{table}}[t]
\centering
\caption{{{caption}.}}
\begin{{tabular}}{{{columns}}}
\toprule
{header}
\midrule
{body}
\bottomrule
\end{{tabular}}
\end{{table}}"""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A titled table with a label in each row.

    Attributes:
        title: heading above the table.
        legend: sentences under the title, without full stops.
        header: column names; line breaks apply to terminals only.
        rows: a label and the entries of each row; alignment spaces apply to terminals only.
        notes: sentences under the table.
        best: row and column of the entries that LaTeX sets in bold.
        label: minimum width of the label column in a terminal before columns are moved below.
    """

    title: str
    legend: tuple[str, ...] = ()
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    best: frozenset[tuple[int, int]] = frozenset()
    label: int = 16


def aligned(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, width: int, left: Collection[int] = (0,)
) -> list[str]:
    """Return the lines of a table for a terminal: a header, a rule and the rows.

    Args:
        header: column names, possibly with line breaks.
        rows: a text per column; trailing blanks of a number are kept, so that signs after numbers align.
        width: maximum width in characters; only the first column is wrapped.
        left: indices of the left-aligned columns; the others are right-aligned.
    """
    table = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    height = max(name.count("\n") for name in header)
    columns = zip(*rows, strict=True) if rows else [()] * len(header)
    sizes = [_cell_width((name, *column)) for name, column in zip(header, columns, strict=True)]
    for at, (name, size) in enumerate(zip(header, sizes, strict=True)):
        text = Text("\n" * (height - name.count("\n")) + name, justify="left" if at in left else "right")
        table.add_column(text, no_wrap=at > 0, min_width=size if at else None, overflow="fold")
    for cells in rows:
        # rich strips entries that it right-aligns
        texts = (cell if at in left else cell.rjust(sizes[at]) for at, cell in enumerate(cells))
        table.add_row(*(Text(text, justify="left") for text in texts))
    output = StringIO()
    Console(file=output, width=width, color_system=None, force_terminal=False).print(table)
    return [line.rstrip() for line in output.getvalue().splitlines()]


def as_text(table: Table) -> str:
    """Return a table of at most `WIDTH` characters per line: long labels are wrapped, excess columns moved below."""
    lines = [table.title, *(line for text in table.legend for line in textwrap.wrap(text, WIDTH))]
    lines += ["", text_rows(table)]
    if table.notes:
        lines += ["", *(line for note in table.notes for line in textwrap.wrap(note, WIDTH))]
    return "\n".join(lines)


def text_rows(table: Table) -> str:
    """Return the header and rows of `as_text`."""
    lines: list[str] = []
    for columns in _parts(table):
        header, *rows = [[entries[k] for k in (0, *columns)] for entries in (table.header, *table.rows)]
        lines += ["", *aligned(header, rows, width=WIDTH)]
    return "\n".join(lines[1:])


def _parts(table: Table) -> Iterator[list[int]]:
    """Yield groups of columns that fit the width together with the label."""
    label, *widths = [_cell_width(column) for column in zip(table.header, *table.rows, strict=True)]
    room = left = WIDTH - min(table.label, label)
    columns: list[int] = []
    for column, width in enumerate(widths, start=1):
        if columns and width + _GAP > left:
            yield columns
            columns, left = [], room
        columns.append(column)
        left -= width + _GAP
    yield columns


def _cell_width(texts: Sequence[str]) -> int:
    return max((cell_len(line) for text in texts for line in text.split("\n")), default=0)


def as_markdown(table: Table, *, level: int = 2) -> str:
    """Return a Markdown table under a heading, with its legend and notes."""
    notes = "\n".join(f"- {note}" for note in table.notes)
    parts = (f"{'#' * level} {table.title}", markdown_legend(table), markdown_rows(table), notes)
    return "\n\n".join(part for part in parts if part)


def markdown_legend(table: Table) -> str:
    return " ".join(f"{_capital(text)}." for text in table.legend).replace("*", "\\*")


def markdown_rows(table: Table) -> str:
    """Return the header and rows of `as_markdown`."""
    header, *rows = _one_line(table)
    rows = [header, *([f"`{label}`", *entries] for label, *entries in rows)]
    lines = [
        "| " + " | ".join(text.replace("|", "\\|").replace("*", "\\*") for text in row) + " |" for row in rows
    ]
    lines.insert(1, "|---|" + "---:|" * (len(table.header) - 1))
    return "\n".join(lines)


def as_latex(table: Table) -> str:
    """Return a LaTeX table with booktabs rules."""
    header, *rows = ([_tex(entry) for entry in entries] for entries in _one_line(table))
    for at, row in enumerate(rows):
        row[0] = rf"\texttt{{{row[0]}}}"
        row[:] = [rf"\textbf{{{text}}}" if (at, k) in table.best else text for k, text in enumerate(row)]
    caption = ". ".join((table.title, *map(_capital, (*table.legend, *table.notes))))
    lines = [f"{' & '.join(row)} \\\\" for row in (header, *rows)]
    columns = "l" + "r" * (len(table.header) - 1)
    return _LATEX_TABLE.format(
        caption=_tex(caption), columns=columns, header=lines[0], body="\n".join(lines[1:])
    )


def _one_line(table: Table) -> Iterator[list[str]]:
    """Yield the header and the rows without line breaks and alignment spaces."""
    for at, row in enumerate((table.header, *table.rows)):
        yield [text if at and not k else " ".join(text.split()) for k, text in enumerate(row)]


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _tex(text: str) -> str:
    text = re.sub(r"(?<![\w)\]])-(?=\d)", "\u2212", text)  # a minus, not the hyphen of a range or a name
    return "".join(_LATEX.get(sign, sign) for sign in text)


def decimals(largest: float) -> int:
    """Return the number of decimals to show for values up to `largest`."""
    return 1 if largest >= 10 else 2 if largest > 1 else 3


def duration(time: float | None) -> str:
    """Return seconds as text, such as `1 h 02 min`; `unknown` for None."""
    if time is None:
        return "unknown"
    minutes, rest = divmod(round(time), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
