"""Tables and figures in Markdown files, generated from the result files that comments name."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from polypool.infra.errors import InputError
from polypool.infra.files import atomic, existing
from polypool.infra.text_tables import markdown_legend, markdown_rows, text_rows
from polypool.pipelines.comparison.cross_task import tables_of
from polypool.pipelines.comparison.results import APART, groups_of, read_results
from polypool.pipelines.comparison.tables import across, scores

_BEGIN, _END = re.compile(r"^<!-- table: .+ -->$", re.MULTILINE), "<!-- end of table -->"
_TABLE = re.compile(
    rf"^(?P<begin><!-- table: (?P<file>[^\n]+?)(?P<text> as text)? -->)$(?P<body>.*?)^{_END}",
    re.MULTILINE | re.DOTALL,
)
_FIGURE = re.compile(r"^<!-- figure: (?P<file>.+?) -->\n+!\[[^\]]*\]\((?P<picture>[^)\s]+)\)$", re.MULTILINE)
_WIDTH = 120


def renew(files: Sequence[Path], *, check: bool) -> Iterator[str]:
    """Renew the tables and figures of Markdown files, and yield a line for each outdated table.

    Args:
        files: the Markdown files.
        check: write nothing.

    Raises:
        InputError: as `renewed` and `draw_figures`, or a file cannot be read or written.
    """
    for path in files:
        text = existing(path, what="a Markdown file").read_bytes().decode()
        new, changed = renewed(text, path.parent, where=str(path))
        if not check:
            draw_figures(text, path.parent)
        yield from (f"{path}: {line}" for line in changed)
        if changed and not check:
            with atomic(path) as file:
                file.write(new.encode())


def renewed(text: str, folder: Path, *, where: str) -> tuple[str, list[str]]:
    """Return a document with new tables, and a line for each changed one.

    Args:
        text: the document.
        folder: base of the paths of results.
        where: name of the document, for messages.

    Raises:
        InputError: the document has no table or figure, a table has no end, or its results cannot be read.
    """
    changed: list[str] = []

    def new(found: re.Match[str]) -> str:
        begin, file, as_text = found["begin"], found["file"], bool(found["text"])
        body = f"\n{rendered(read_results(folder / file), file=file, as_in_terminal=as_text)}\n"
        if body != found["body"]:
            changed.append(f"the table of {file} is not what its results say")
        return f"{begin}{body}{_END}"

    renewed, count = _TABLE.subn(new, text)
    if not (count or _FIGURE.search(text)) or count < len(_BEGIN.findall(text)):
        raise InputError(f"{where}: a table is marked by two lines, `<!-- table: FILE -->` and `{_END}`")
    return renewed, changed


def draw_figures(text: str, folder: Path) -> None:
    """Draw a document's figures: lags behind the best for `FILE`, means in two tables for `FILE against FILE`.

    Args:
        text: the document.
        folder: base of the paths of results and pictures.

    Raises:
        InputError: results cannot be read, are of several tables, or have fewer than two rows to draw.
    """
    from polypool.pipelines.comparison.charts import draw_against, draw_lags  # Matplotlib
    from polypool.pipelines.figures.style import save

    for found in _FIGURE.finditer(text):
        groups, *others = (
            groups_of(read_results(folder / file)) for file in found["file"].split(" against ")
        )
        if others:
            figure = draw_against(groups, *others)
        else:
            tables = tables_of(groups)
            figure = draw_lags(tables[0]) if len(tables) == 1 else None
        if figure is None:
            raise InputError(f"{found['file']}: cannot be drawn, expected one table of at least two rows")
        save(figure, folder / found["picture"])


def rendered(records: pd.DataFrame, *, file: str, as_in_terminal: bool = False) -> str:
    """Return results as a table: task x aggregator for several tasks or with a baseline, else each protocol's scores.

    Args:
        records: the results.
        file: path for the link; FILE#TABLE for one of several tables.
        as_in_terminal: align the columns by spaces, without legends and notes.
    """
    parts = [""]
    for of in tables_of(groups_of(records)):
        table = across(of) if len(of.columns) > 1 or of.baseline else scores(of.columns[0].group)
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
