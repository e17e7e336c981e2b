"""Tables in Markdown files, each written from the results that the comment above it names."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from infra.errors import InputError
from infra.files import existing
from pipelines.comparison.result_files import read_results
from pipelines.comparison.results import APART, Result, groups_of
from pipelines.comparison.tables import report
from pipelines.comparison.tables.cross_task import cross_task_table
from pipelines.comparison.tables.render import markdown_rows, text_rows

_BEGIN = re.compile(r"^<!-- table: (?P<file>.+?)(?P<text> as text)? -->$", re.MULTILINE)
_END = "<!-- end of table -->"
_WIDTH = 120
_COMMIT = 10


def read_document(path: Path) -> str:
    """Return the text of a Markdown file.

    Raises:
        InputError: there is none, or it is not UTF-8.
    """
    try:
        return existing(path, what="a Markdown file").read_bytes().decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8: {error}") from None


def renewed(text: str, folder: Path, *, where: str) -> tuple[str, list[str]]:
    """Return a document with its tables written anew, and a line for each that changed.

    Args:
        text: the document.
        folder: that files of results are looked for from.
        where: its name, for messages.

    Raises:
        InputError: it has no table, a table has no end, or its results cannot be read.
    """
    parts, changed, at = [], [], 0
    for begin in _BEGIN.finditer(text):
        if begin.start() < at:
            raise InputError(f"{where}: a table begins before {_END!r} of the one above it")
        end = text.find(f"\n{_END}", begin.end())
        if end < 0:
            raise InputError(f"{where}: the table of {begin['file']} has no line {_END!r} after it")
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


def rendered(records: Sequence[Result], *, file: str, as_in_terminal: bool = False) -> str:
    """Return the table of results: task x aggregator where there are several tasks, else the scores of each protocol.

    Args:
        records: the results.
        file: the name of their file, to which the text links; FILE#TABLE where it has several tables.
        as_in_terminal: whether it is set with blanks, and without legends.
    """
    groups = groups_of(records)
    crossed = cross_task_table(groups)
    tables = [report.across(crossed)] if crossed is not None else [report.scores(group) for group in groups]
    if as_in_terminal:
        return "\n".join(
            [
                "",
                *(textwrap.indent(text_rows(table), "    ") + "\n" for table in tables),
                _origin(records, file),
            ]
        )
    parts = []
    for table in tables:
        sentences = " ".join(f"{text[0].upper()}{text[1:]}." for text in table.legend)
        notes = [f"- {note}" for note in table.notes]
        parts += ["", markdown_rows(table), "", textwrap.fill(sentences.replace("*", "\\*"), _WIDTH), *notes]
    return "\n".join([*parts, "", _origin(records, file)])


def _origin(records: Sequence[Result], file: str) -> str:
    commits = _each(record.commits for record in records)
    commands = _each(record.command for record in records)
    runs = len(set(_each(record.run_ids for record in records)))
    of = (
        f" of commit{'s' * (len(commits) > 1)} {', '.join(_short(commit) for commit in commits)}"
        if commits
        else ""
    )
    by = f", by `{commands[0]}`" if commands else ""
    if len(commands) > 1:
        by += f" and {len(commands) - 1} more command{'s' * (len(commands) > 2)}, which are there"
    path, _, table = file.partition("#")
    of_table = f", `{table}`" if table else ""
    return textwrap.fill(
        f"From [{Path(path).name}]({path}){of_table}: {runs} run{'s' * (runs > 1)}{of}{by}.",
        _WIDTH,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _short(commit: str) -> str:
    return commit[:_COMMIT] + "+" * commit.endswith("+")


def _each(fields: Iterable[str]) -> list[str]:
    """Return the values of fields that may hold several, each once."""
    return [*dict.fromkeys(value for field in fields for value in field.split(APART) if value)]
