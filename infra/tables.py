"""Tables of text for a terminal, aligned by rich, and times in words."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from io import StringIO

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

GAP = 2
"""Blanks between columns."""


def aligned(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, width: int, left: Collection[int] = (0,)
) -> list[str]:
    """Return the lines of a table: a header, a rule and the rows.

    Args:
        header: the columns' names, of several lines each where they hold line breaks.
        rows: a text for each column; blanks at the end of a number count, so that a sign after others keeps its place.
        width: the most columns of the terminal; the first column alone is wrapped to fit.
        left: which columns are set left, the others right.
    """
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    height = max(name.count("\n") for name in header)
    columns = zip(*rows, strict=True) if rows else [()] * len(header)
    sizes = [cell_width((name, *column)) for name, column in zip(header, columns, strict=True)]
    for at, (name, size) in enumerate(zip(header, sizes, strict=True)):
        justify = "left" if at in left else "right"
        name = "\n" * (height - name.count("\n")) + name
        table.add_column(
            Text(name, justify=justify), no_wrap=at > 0, min_width=size if at else None, overflow="fold"
        )
    for cells in rows:
        # rich strips what it sets right itself
        texts = (cell if at in left else cell.rjust(sizes[at]) for at, cell in enumerate(cells))
        table.add_row(*(Text(text, justify="left") for text in texts))
    console = Console(file=StringIO(), width=width, color_system=None, force_terminal=False)
    console.print(table)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def cell_width(texts: Sequence[str]) -> int:
    """Return the columns of a terminal that the longest line of some texts takes."""
    return max((cell_len(line) for text in texts for line in text.split("\n")), default=0)


def duration(time: float | None) -> str:
    """Return seconds as people say them, such as `1 h 02 min`."""
    if time is None:
        return "unknown"
    minutes, rest = divmod(round(time), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
