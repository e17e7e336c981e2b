"""A table of your own: paths of pictures or videos with captions, or with questions and answers.

CSV, TSV, JSON lines, JSON lists and Parquet, read through pyarrow into some of their columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.dataset as ds
import pyarrow.json
from pyarrow import fs

from polypool.infra.errors import InputError
from polypool.infra.files import existing, identity, read_json
from polypool.infra.registry import READERS
from polypool.infra.store.findings import Flagged, Skipped
from polypool.tasks.datasets import Reading
from polypool.tasks.datasets.readers.rows import ColumnReader, Columns, Row, grouped, row_of

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
_WHAT = "a table: .csv or .tsv with a header, .jsonl, .json with a list of objects, or .parquet"
_BLOCK = 16 << 20  # bytes: what is read at once, and the longest row
_SEPARATORS = (",", ";", "\t", "|")
_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_LIST = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


@READERS.register("table")
@dataclass(frozen=True, kw_only=True)
class Table(ColumnReader):
    """Read a table of your own: CSV, TSV, JSON lines or Parquet, with a picture or video and a text in each row.

    Several rows of one picture are its captions, and so is a list in one row; with questions, several rows of one
    picture and question are its answers. What is not said is guessed by the columns' names, and printed.
    """

    file: tuple[Path, ...]
    """The table; several files have the same columns."""
    video_column: str = ""
    """Paths of videos, where they are no pictures."""
    id_column: str = ""
    """Id of each picture or video; its path by default. Needed where there are features alone."""
    split_column: str = ""
    """train, val or test; `validation`, `dev` and the like are understood."""
    images: Path | None = None
    """Folder that the paths start from; by default that of the table."""

    def read(self) -> Reading:
        """Return the rows of the table, those of one picture or video together, in the order in which they begin."""
        if not self.file:
            raise InputError("--file names no table")
        if self.split and self.split_column:
            raise InputError("give --split or --split-column, not both")
        random, opened = self.random, [TableFile.open(path) for path in self.file]
        columns = self.columns(opened[0].names, divided=bool(self.split))
        for other in opened[1:]:
            if lacking := [name for name in columns.named.values() if name not in other.names]:
                raise InputError(
                    f"{other.path}: has no column {', '.join(lacking)}, which {opened[0].path} has"
                )
        folder = self.images or self.file[0].parent
        splits, notes = None if "split" in columns.named else random, [*columns.guessed]
        if separators := {file.separator for file in opened} - {"", ",", "\t"}:
            notes.append(f"guessed: fields are separated by {' and '.join(map(repr, separators))}")
        if splits:
            also = "" if self.split else " (--split says others, --split-column a column of them)"
            notes.append(f"{splits}{also}")
        return Reading(
            of="questions" if columns.questions else "captions",
            rows=grouped(_rows(opened, columns), folder=folder, splits=splits, questions=columns.questions),
            source={
                "files": identity(*self.file),
                "columns": columns.named,
                **(asdict(splits) if splits else {}),
            },
            images=folder.absolute() if "media" in columns.named else "",
            notes=notes,
        )


def _rows(files: Sequence[TableFile], columns: Columns) -> Iterator[Row | Skipped | Flagged]:
    """Yield the rows of files, and what cannot be used of them.

    Raises:
        InputError: a file is damaged.
    """
    for file in files:
        values, torn = file.read(list(dict.fromkeys(columns.named.values())))
        yield from torn
        by_meaning = [values[name] for name in columns.named.values()]
        for number, row in enumerate(zip(*by_meaning, strict=True), start=1):
            yield from row_of(f"{file.path.name}, row {number}", dict(zip(columns.named, row, strict=True)))


@dataclass(frozen=True, kw_only=True)
class TableFile:
    """A file whose columns are known, before its rows are read; fields of a CSV file have a separator."""

    path: Path
    names: tuple[str, ...]
    separator: str = ""
    _listed: pa.Table | None = field(default=None, repr=False)

    @classmethod
    def open(cls, path: str | Path) -> TableFile:
        """Look at a file.

        Raises:
            InputError: it is missing, empty, or of no form that is known.
        """
        path = existing(path, what=_WHAT)
        if (suffix := path.suffix.lower()) not in SUFFIXES:
            raise InputError(f"{path}: ends in {suffix or 'nothing'}, expected {_WHAT}")
        listed = _listed(path) if suffix == ".json" else None
        separator = _separator(path) if suffix in (".csv", ".tsv") else ""
        try:
            schema = listed.schema if listed else _fragment(path, separator, {}, []).physical_schema
            names = tuple(schema.names)  # decoded here
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise _unreadable(path, error) from error
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InputError(f"{path}: has several columns called {', '.join(twice)}; rename all but one")
        return cls(path=path, names=names, separator=separator, _listed=listed)

    def read(self, columns: Sequence[str]) -> tuple[dict[str, list[Any]], list[Skipped]]:
        """Return the values of some columns by name, and the rows that cannot be read.

        Values are strings, lists of strings, or None where there is nothing; numbers become strings.

        Raises:
            InputError: the file is damaged, is not UTF-8, or a column has values of another kind.
        """
        torn: list[Skipped] = []
        try:
            table = self._listed
            if table is None:
                types = dict.fromkeys(columns, pa.string())
                fragment = _fragment(self.path, self.separator, types, torn)
                schema = pa.schema(types.items()) if self.separator else None
                table = fragment.to_table(schema=schema, columns=list(columns), use_threads=False)
            return {name: _texts(table[name], name=name, path=self.path) for name in columns}, torn
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise _unreadable(self.path, error) from error


def _fragment(path: Path, separator: str, types: dict[str, pa.DataType], torn: list[Skipped]) -> ds.Fragment:
    """Return a file as pyarrow scans it; rows of a CSV file that do not fit its header go to `torn`."""

    def skip(row: pa.csv.InvalidRow) -> str:
        where = f"{path.name}, {f'line {row.number}' if row.number else f'row {row.text!r:.60}'}"
        why = f"a row of {row.actual_columns} fields, where the header has {row.expected_columns}"
        torn.append(Skipped(where=where, why=why))
        return "skip"

    if separator:
        kind = ds.CsvFileFormat(
            parse_options=pa.csv.ParseOptions(
                delimiter=separator, newlines_in_values=True, invalid_row_handler=skip
            ),
            read_options=pa.csv.ReadOptions(block_size=_BLOCK, use_threads=False),
            convert_options=pa.csv.ConvertOptions(column_types=types),
        )
    elif path.suffix.lower() == ".parquet":
        kind = ds.ParquetFileFormat()
    else:
        kind = ds.JsonFileFormat(read_options=pa.json.ReadOptions(block_size=_BLOCK))
    return kind.make_fragment(str(path.absolute()), filesystem=fs.LocalFileSystem())


def _listed(path: Path) -> pa.Table:
    rows = read_json(path, what=_WHAT)
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise InputError(f'{path}: expected a list of objects, [{{"image": ..., "caption": ...}}, ...]')
    names = dict.fromkeys(name for row in rows for name in row)
    try:
        return pa.table({name: [row.get(name) for row in rows] for name in names})
    except pa.ArrowException as error:
        raise _unreadable(path, error) from error


def _separator(path: Path) -> str:
    """Return what separates the fields of a CSV file: what its first line has most of."""
    if path.suffix.lower() == ".tsv":
        return "\t"
    with path.open(encoding="utf-8-sig", errors="replace") as lines:
        header = lines.readline(_BLOCK)
    return max(_SEPARATORS, key=header.count)


def _texts(column: pa.ChunkedArray, *, name: str, path: Path) -> list[Any]:
    kind = column.type
    if any(check(kind) for check in _LIST) and any(check(kind.value_type) for check in _TEXT):
        return column.to_pylist()
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        raise InputError(
            f"{path}: the column {name!r} holds {kind}, expected strings, numbers or lists of strings; pictures that "
            "are in the table itself have to be written to files first"
        )
    return (column if any(check(kind) for check in _TEXT) else pc.cast(column, pa.string())).to_pylist()


def _unreadable(path: Path, error: Exception) -> InputError:
    why = str(error).partition("\n")[0].partition(" Is this a ")[0]
    return InputError(f"{path}: cannot be read: {why:.300}; expected {_WHAT}, in UTF-8")
