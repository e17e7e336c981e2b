"""CSV read strictly: a line is a row, and one that does not fit the header is told, never joined with others."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from infra.errors import InputError
from infra.files import existing
from infra.store.findings import Skipped


def read_csv(path: str | Path, *, columns: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]] | Skipped]:
    """Yield where each row is, and its values in some columns; rows that cannot be trusted are skipped.

    A quote that is not closed on its line would make one row of all lines to the next quote, and a row of more or fewer
    fields than the header has its values in the wrong columns. Empty lines are passed over.

    Args:
        path: a UTF-8 file, whose first line names its columns.
        columns: those that are wanted.

    Raises:
        InputError: there is no such file, or its header has not these columns, each once.
    """
    path = existing(path, what=f"a CSV file with the column(s) {', '.join(columns)}")
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
        header = _fields(next(lines, ""))
        places = _places(header, columns=columns, path=path)
        for number, line in enumerate(lines, start=2):
            if not line.strip():
                continue
            where, fields = f"{path.name}, line {number}", _fields(line)
            if isinstance(fields, str):
                yield Skipped(where=where, why=fields)
            elif len(fields) != len(header):
                why = f"a row of {len(fields)} fields, where the header has {len(header)}"
                yield Skipped(where=where, why=why)
            else:
                yield where, tuple(fields[place].strip() for place in places)


def _fields(line: str) -> list[str] | str:
    """Return the fields of a line, or why it has none."""
    try:
        (fields,) = csv.reader([line], strict=True)
    except (csv.Error, ValueError) as error:
        if "field larger" in str(error):
            return "a row with a field that is far too long"
        return "a row with a quote that is not closed where its field or line ends"
    return fields


def _places(header: list[str] | str, *, columns: Sequence[str], path: Path) -> list[int]:
    names = [name.strip() for name in header] if isinstance(header, list) else []
    for many, wrong in (
        ("no column", [name for name in columns if name not in names]),
        ("more than one column", [name for name in columns if names.count(name) > 1]),
    ):
        if wrong:
            found = header if isinstance(header, str) else ", ".join(names) or "none"
            raise InputError(
                f"{path}: {many} {', '.join(wrong)}; expected {', '.join(columns)}, and it has {found:.200}"
            )
    return [names.index(name) for name in columns]
