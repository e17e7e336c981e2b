"""Results in CSV or Parquet files, by the ending of the name.

A file holds one table or several named ones; `results.csv#photographs` is the path of one of these.
"""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from polypool.infra.errors import InputError, unknown
from polypool.infra.fields import from_plain, hints
from polypool.infra.files import atomic, existing, make_folder
from polypool.pipelines.comparison.results import Number, Result, columns

ENDINGS = (".csv", ".parquet")
WHAT = "results that `polypool compare --out` wrote"
_NAMES = tuple(field.name for field in dataclasses.fields(Result))
_NEEDED = {field.name for field in dataclasses.fields(Result) if field.default is dataclasses.MISSING}
"""Columns of every file; files of earlier versions may lack the others."""
_PARQUET = {
    str: pa.string(),
    bool: pa.bool_(),
    bool | None: pa.bool_(),
    int: pa.int64(),
    Number: pa.float64(),
}


def refuse_ending(path: Path) -> None:
    """Raise InputError for a path of results that ends in none of `ENDINGS`."""
    path, _ = _parted(path)
    if path.suffix.lower() not in ENDINGS:
        raise InputError(f"{path}: results are written as {' or '.join(ENDINGS)}, by the end of the name")


def write_results(records: Sequence[Result], path: Path) -> None:
    """Write results; a named table is added to the others of its file.

    Raises:
        InputError: an unknown ending, or a file that cannot be written, or is damaged and cannot be added to.
    """
    refuse_ending(path)
    path, table = _parted(path)
    records = [dataclasses.replace(record, table=table) for record in records]
    if table and path.exists():
        others = [record for record in _read(path) if record.table != table]
        records = sorted([*others, *records], key=lambda record: record.table)
    data = _parquet(records) if path.suffix.lower() == ".parquet" else _csv(records)
    make_folder(path.parent)
    with atomic(path, needs=len(data)) as file:
        file.write(data)


def read_results(path: Path) -> list[Result]:
    """Read a table that `write_results` wrote; a file of one needs no name.

    Raises:
        InputError: there is no such file or table, none of several is named, or it is damaged; the message names column
            and line.
    """
    refuse_ending(path)
    file, table = _parted(path)
    records = _read(file)
    tables = [*dict.fromkeys(record.table for record in records)]
    if table:
        if table not in tables:
            raise unknown(f"table of {file}:", table, tables)
        records = [record for record in records if record.table == table]
    elif len(tables) > 1:
        raise InputError(
            f"{file}: holds several tables; name one, such as {file.name}#{tables[0]}: {', '.join(tables)}"
        )
    if not any(record.decides for record in records):
        raise InputError(f"{path}: holds no results; write it anew with `polypool compare --out {path}`")
    return records


def _parted(path: Path) -> tuple[Path, str]:
    """Return the file, and the name of the table in it, if any."""
    name, _, table = path.name.partition("#")
    return path.with_name(name) if name else path, table


def _read(path: Path) -> list[Result]:
    path = existing(path, what=WHAT)
    rows = _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)
    return [from_plain(Result, row, where=f"{path}: {place}") for place, row in rows]


def _csv(records: Sequence[Result]) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(_NAMES)
    rows.writerows([_text(getattr(record, name)) for name in _NAMES] for record in records)
    return text.getvalue().encode()


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else f"{value:.10g}" if isinstance(value, float) else str(value)


def _parquet(records: Sequence[Result]) -> bytes:
    schema = pa.schema([(name, _PARQUET[hint]) for name, hint in hints(Result).items()])
    out = pa.BufferOutputStream()
    pq.write_table(pa.table(dict(columns(records)), schema=schema), out, write_page_checksum=True)
    return out.getvalue().to_pybytes()


def _read_csv(path: Path) -> list[tuple[str, dict[str, object]]]:
    try:
        lines = [*csv.reader(io.StringIO(path.read_bytes().decode()), strict=True)]
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as CSV: {error}; expected {WHAT}") from None
    names = lines[0] if lines else []
    if len({*names}) < len(names) or not _NEEDED <= {*names} <= {*_NAMES}:
        raise InputError(f"{path}: its columns are not those of {WHAT}; write it anew")
    rows = []
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(names):
            raise InputError(f"{path}: line {number} has {len(line)} fields, expected {len(names)}")
        values = dict(zip(names, line, strict=True))
        rows.append(
            (f"line {number}", {name: _value(text, hints(Result)[name]) for name, text in values.items()})
        )
    return rows


def _value(text: str, hint: object) -> object:
    """Return the text of a field as its type; text that does not fit is left for `from_plain` to refuse."""
    if hint is str:
        return text
    if hint in (bool, bool | None):
        return {"true": True, "false": False, "": None}.get(text, text)
    try:
        return (int(text) if hint is int else float(text)) if text else None
    except ValueError:
        return text


def _read_parquet(path: Path) -> list[tuple[str, dict[str, object]]]:
    try:
        rows = pq.read_table(path, page_checksum_verification=True).to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: text that is no UTF-8
        raise InputError(f"{path}: cannot be read as Parquet: {error}; expected {WHAT}") from None
    return [(f"row {number}", row) for number, row in enumerate(rows, start=1)]
