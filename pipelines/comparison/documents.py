"""Tables and figures of Markdown files, generated from the results that the comments above them name."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from polypool.infra.errors import InputError
from polypool.infra.files import atomic, existing
from polypool.infra.text_tables import Table, markdown_legend, markdown_rows, text_rows
from polypool.pipelines.comparison.cross_task import cross_task_table
from polypool.pipelines.comparison.results import APART, groups_of, read_results
from polypool.pipelines.comparison.rows import by_tuning
from polypool.pipelines.comparison.tables import across, scores

_BEGIN = re.compile(r"^<!-- table: (?P<file>.+?)(?P<text> as text)? -->$", re.MULTILINE)
_END = "<!-- end of table -->"
_FIGURE = re.compile(r"^<!-- figure: (?P<file>.+?) -->\n+!\[[^\]]*\]\((?P<picture>[^)\s]+)\)$", re.MULTILINE)
_WIDTH = 120


def renew(files: Sequence[Path], *, check: bool) -> Iterator[str]:
    """Renew the tables of Markdown files, and yield a line for each that was not current.

    Args:
        files: the Markdown files.
        check: write nothing.

    Raises:
        InputError: as `renewed`, or a file that cannot be read or written.
    """
    for path in files:
        try:
            text = existing(path, what="a Markdown file").read_bytes().decode()
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: is not UTF-8: {error}") from None
        new, changed = renewed(text, path.parent, where=str(path))
        if not check:
            draw_figures(text, path.parent)
        yield from (f"{path}: {line}" for line in changed)
        if changed and not check:
            with atomic(path) as file:
                file.write(new.encode())


def renewed(text: str, folder: Path, *, where: str) -> tuple[str, list[str]]:
    """Return a document with its tables generated anew, and a line for each that changed.

    Args:
        text: the document.
        folder: to which paths of results are relative.
        where: its name, for messages.

    Raises:
        InputError: it has no table, a table has no end, or its results cannot be read.
    """
    parts, changed, at = [], [], 0
    for begin in _BEGIN.finditer(text):
        end = text.find(f"\n{_END}", begin.end())
        if begin.start() < at or end < 0:
            raise InputError(
                f"{where}: the table of {begin['file']} has no line {_END!r} of its own after it"
            )
        body = rendered(
            read_results(folder / begin["file"]), file=begin["file"], as_in_terminal=bool(begin["text"])
        )
        if text[begin.end() : end] != f"\n{body}":
            changed.append(f"the table of {begin['file']} is not what its results say")
        parts += [text[at : begin.end()], "\n", body]
        at = end
    if not at:
        raise InputError(
            f"{where}: names no results; a line `<!-- table: FILE -->` and a line `{_END}` make room for some"
        )
    return "".join([*parts, text[at:]]), changed


def draw_figures(text: str, folder: Path) -> None:
    """Draw the tables that a document's figures name, with their intervals and costs, into the pictures it shows.

    Args:
        text: the document.
        folder: to which paths of results and pictures are relative.

    Raises:
        InputError: results cannot be read, or none of them has a cost.
    """
    from polypool.pipelines.comparison.charts import draw_charts, table_charts  # Matplotlib
    from polypool.pipelines.figures.style import save

    for found in _FIGURE.finditer(text):
        figure = draw_charts(table_charts(groups_of(read_results(folder / found["file"]))))
        if figure is None:
            raise InputError(
                f"{found['file']}: fewer than two rows have a score and a cost in every column, so that there is no "
                "figure of it"
            )
        save(figure, folder / found["picture"])


def rendered(records: pd.DataFrame, *, file: str, as_in_terminal: bool = False) -> str:
    """Return results as a table: task x aggregator for several tasks, else the scores of each protocol.

    Args:
        records: the results.
        file: the path that the text links to; FILE#TABLE for one of several tables.
        as_in_terminal: align the columns by spaces, and leave the legends out.
    """
    tables: list[Table] = []
    for groups in by_tuning(groups_of(records)):
        crossed = cross_task_table(groups)
        tables += [across(crossed)] if crossed is not None else map(scores, groups)
    parts = [""]
    for table in tables:
        if as_in_terminal:
            parts += [textwrap.indent(text_rows(table), "    "), ""]
        else:
            legend = textwrap.fill(markdown_legend(table), _WIDTH)
            parts += [markdown_rows(table), "", legend, *(f"- {note}" for note in table.notes), ""]
    commits, commands, runs = (
        [*dict.fromkeys(value for field in records[name] for value in field.split(APART) if value)]
        for name in ("commits", "command", "run_ids")
    )
    shown = [each[:10] + "+" * each.endswith("+") for each in commits]
    of = f" of commit{'s' * (len(shown) > 1)} {', '.join(shown)}" if shown else ""
    by = f", by `{commands[0]}`" if commands else ""
    if len(commands) > 1:
        by += f" and {len(commands) - 1} more command{'s' * (len(commands) > 2)}, listed there"
    path, _, name = file.partition("#")
    origin = f"From [{Path(path).name}]({path}){f', `{name}`' * bool(name)}: {len(runs)} run{'s' * (len(runs) > 1)}"
    wrapped = textwrap.fill(f"{origin}{of}{by}.", _WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join([*parts, wrapped])
