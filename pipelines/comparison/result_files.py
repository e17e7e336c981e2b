"""Results in CSV or Parquet files, by the ending of the name.

A file holds one table or several named ones; `results.csv#photographs` is the path of one of these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from polypool.infra.errors import InputError, unknown
from polypool.infra.fields import from_plain, hints
from polypool.infra.files import atomic, existing, make_folder
from polypool.pipelines.comparison.results import Number, Result, columns

ENDINGS = (".csv", ".parquet")
WHAT = "results that `polypool compare --out` wrote"
_PARQUET = {
    str: pa.string(),
    bool: pa.bool_(),
    bool | None: pa.bool_(),
    int: pa.int64(),
    Number: pa.float64(),
}
_SCHEMA = pa.schema([(name, _PARQUET[hint]) for name, hint in hints(Result).items()])


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
    rows = pa.table(dict(columns(records)), schema=_SCHEMA)
    make_folder(path.parent)
    with atomic(path, needs=rows.nbytes) as file:
        if path.suffix.lower() == ".parquet":
            pq.write_table(rows, file, write_page_checksum=True)
        else:
            rows.to_pandas().to_csv(file, index=False)


def read_results(path: Path) -> list[Result]:
    """Read a table that `write_results` wrote; a file of one needs no name.

    Raises:
        InputError: there is no such file or table, none of several is named, or it is damaged.
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
    form = "Parquet" if path.suffix.lower() == ".parquet" else "CSV"
    data = existing(path, what=WHAT).read_bytes()
    try:
        if form == "Parquet":
            table = pq.read_table(pa.BufferReader(data), page_checksum_verification=True)
        else:
            table = csv.read_csv(
                pa.BufferReader(data),
                parse_options=csv.ParseOptions(newlines_in_values=True),
                convert_options=csv.ConvertOptions(column_types=_SCHEMA),
            )
        rows = table.to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: text that is no UTF-8
        raise InputError(f"{path}: cannot be read as {form}: {error}; expected {WHAT}") from None
    if sorted(table.column_names) != sorted(_SCHEMA.names):
        raise InputError(f"{path}: its columns are not those of {WHAT}; write it anew")
    return [from_plain(Result, row, where=f"{path}: row {number}") for number, row in enumerate(rows, 1)]
