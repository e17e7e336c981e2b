"""A table of your own: paths of pictures or videos with captions, or with questions and answers.

CSV, TSV, JSON lines, JSON lists and Parquet, read through pyarrow into some of their columns.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from polypool.infra.errors import InputError
from polypool.infra.files import existing, identity, parse_json
from polypool.infra.limits import LARGEST_TEXT
from polypool.infra.registry import READERS
from polypool.infra.store.findings import Flagged, Skipped
from polypool.tasks.datasets import Reading
from polypool.tasks.datasets.annotation_files import read_elements, read_lines
from polypool.tasks.datasets.own.arrow_rows import holds_pictures, parquet_batches, plain_rows
from polypool.tasks.datasets.own.rows import ColumnReader, Columns, Row, grouped, row_of
from polypool.tasks.datasets.splits import SPLITS, USUAL_SHARES, split_called

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
_WHAT = "a table: .csv or .tsv with a header, .jsonl, .json with a list of objects, or .parquet"
_LOOKED_AT = 1000  # objects of a JSON file, whose keys are its columns
_BLOCK = 4 << 20  # bytes of a CSV file that are decoded at a time; a longer row is refused
_SEPARATORS = (",", ";", "\t", "|")


@READERS.register("table")
@dataclass(frozen=True, kw_only=True)
class Table(ColumnReader):
    """Read a table of your own: CSV, TSV, JSON lines or Parquet, with a picture or video and a text in each row.

    Several rows of one picture are its captions, and so is a list in one row; with questions, several rows of one
    picture and question are its answers. What is not said is guessed by the columns' names, and printed.
    """

    file: tuple[Path, ...]
    """The table; several files have the same columns. `train=a.csv val=b.csv test=c.csv` says which split each is."""
    video_column: str = ""
    """Paths of videos, where they are no pictures."""
    split_column: str = ""
    """train, val or test; `validation`, `dev` and the like are understood."""
    images: Path | None = None
    """Folder that the paths start from; by default that of their table."""

    def read(self) -> Reading:
        """Return the rows of the table, those of one picture or video together, in the order in which they begin."""
        if not self.file:
            raise InputError("--file names no table")
        if self.split and self.split_column:
            raise InputError("give --split or --split-column, not both")
        random, opened = self.random, [TableFile.open(*_said(each)) for each in self.file]
        apart = _apart(opened)
        if apart and (self.split or self.split_column):
            raise InputError("--file says the splits; leave out --split and --split-column")
        pictures = _pictures_inside(opened[0])
        try:
            columns = self.columns(opened[0].names, divided=apart or bool(self.split))
        except InputError as error:
            raise InputError("; ".join(filter(None, (str(error), pictures)))) from error
        for other in opened[1:]:
            if lacking := [name for name in columns.named.values() if name not in other.names]:
                raise InputError(
                    f"{other.path}: has no column {', '.join(lacking)}, which {opened[0].path} has"
                )
        common = Path(os.path.commonpath([file.path.parent.absolute() for file in opened]))
        folder = self.images or common
        own_splits, notes = apart or "split" in columns.named, [*columns.guessed, *filter(None, (pictures,))]
        if separators := {file.separator for file in opened} - {"", ",", "\t"}:
            notes.append(f"guessed: fields are separated by {' and '.join(map(repr, separators))}")
        if not (own_splits or self.split):
            _refuse_split_names(opened, folder=common)
        if not own_splits:
            also = "" if self.split else " (--split says others, --split-column a column of them)"
            notes.append(f"{random}{also}")
        return Reading(
            of="questions" if columns.questions else "captions",
            rows=grouped(
                _rows(opened, columns, folder=None if self.images else common),
                folder=folder,
                splits=random,
                own_splits=own_splits,
                apart=apart,
                questions=columns.questions,
            ),
            source={
                "files": identity(*(file.path for file in opened)),
                "columns": columns.named,
                **({"splits": [file.split for file in opened]} if apart else {}),
                **({} if own_splits and not self.val else asdict(random)),
            },
            images=folder.absolute() if "media" in columns.named else "",
            notes=notes,
        )


def _pictures_inside(file: TableFile) -> str:
    """Return what to do with columns of pictures; empty where there are none."""
    if not file.pictures:
        return ""
    return (
        f"not read: {', '.join(map(repr, file.pictures))}, pictures inside the table: `polypool ingest hf --name "
        f"{file.path.parent} --images DIR --out DIR` reads the tables of a folder and writes their pictures to files"
    )


def _said(file: Path) -> tuple[Path, str]:
    """Return a file and the split that `split=FILE` says; empty where it says none."""
    split, says, path = str(file).partition("=")
    if not says or not re.fullmatch(r"[\w-]+", split) or file.exists():
        return file, ""
    return Path(path), split_called(split)


def _apart(files: Sequence[TableFile]) -> bool:
    """Whether the splits of files were said.

    Raises:
        InputError: those of some alone.
    """
    if unsaid := [str(file.path) for file in files if not file.split]:
        if len(unsaid) < len(files):
            raise InputError(
                f"--file {' '.join(unsaid)}: say the split, as for the others, such as test={unsaid[0]}"
            )
        return False
    return True


def _refuse_split_names(files: Sequence[TableFile], *, folder: Path) -> None:
    """Raise InputError for files below a folder that are called after several splits, where nothing says them."""
    paths = [os.path.splitext(os.path.relpath(file.path, folder))[0] for file in files]
    found = [{*map(split_called, re.split(r"[^A-Za-z]+", path))} & {*SPLITS} for path in paths]
    if len(set[str]().union(*found)) > 1:
        splits = [split if len(each) == 1 else "SPLIT" for each in found for split in [*each][:1] or [""]]
        named = " ".join(f"{split}={file.path}" for split, file in zip(splits, files, strict=True))
        raise InputError(
            f"files that are called after splits, which no column says: --file {named} keeps these splits, --split "
            f"{USUAL_SHARES} divides all rows anew at random"
        )


def _rows(
    files: Sequence[TableFile], columns: Columns, *, folder: Path | None
) -> Iterator[Row | Skipped | Flagged]:
    """Yield the rows of files, and what cannot be used of them; paths start from `folder`, or are left as they are.

    Raises:
        InputError: a file is damaged.
    """
    wanted = tuple(dict.fromkeys(columns.named.values()))
    number = 0
    for file in files:
        before, below = number, os.path.relpath(file.path.parent, folder) if folder else os.curdir
        for row in file.rows(wanted):
            if isinstance(row, Skipped):
                yield row
                continue
            number += 1
            values = {part: row.get(name) for part, name in columns.named.items()}
            if file.split:
                values["split"] = file.split
            if below != os.curdir and isinstance(path := values.get("media"), str) and path.strip():
                values["media"] = os.path.join(below, path.strip())
            yield from row_of(f"{file.path.name}, row {number - before}", values, number=number)


@dataclass(frozen=True, kw_only=True)
class TableFile:
    """A file whose columns are known, before its rows are read; fields of a CSV file have a separator."""

    path: Path
    names: tuple[str, ...]
    separator: str = ""
    split: str = ""
    """Of all its rows; empty where a column has them, or none."""
    pictures: tuple[str, ...] = ()
    """Columns of pictures themselves, which are not among the names."""

    @classmethod
    def open(cls, path: str | Path, split: str = "") -> TableFile:
        """Look at a file.

        Raises:
            InputError: it is missing, empty, or of no form that is known.
        """
        path = existing(path, what=_WHAT)
        if (suffix := path.suffix.lower()) not in SUFFIXES:
            raise InputError(f"{path}: ends in {suffix or 'nothing'}, expected {_WHAT}")
        separator, pictures = _separator(path) if suffix in (".csv", ".tsv") else "", ()
        with _reading(path):
            if separator:
                _check_utf8(path)
                with _csv(path, separator, None, []) as table:
                    names = tuple(table.schema.names)
            elif suffix == ".parquet":
                schema = pq.read_schema(path)
                pictures = tuple(field.name for field in schema if holds_pictures(field.type))
                names = tuple(name for name in schema.names if name not in pictures)  # decoded here
            else:
                names = tuple(
                    dict.fromkeys(name for row in islice(_objects(path), _LOOKED_AT) for name in row)
                )
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InputError(f"{path}: has several columns called {', '.join(twice)}; rename all but one")
        return cls(path=path, names=names, separator=separator, split=split, pictures=pictures)

    def rows(self, columns: Sequence[str]) -> Iterator[dict[str, Any] | Skipped]:
        """Yield the values of some columns by name, row by row, and the rows that cannot be read.

        Raises:
            InputError: the file is damaged, is not UTF-8, or a column or row is too large.
        """
        torn: list[Skipped] = []
        with _reading(self.path):
            if self.separator:
                batches = _csv(self.path, self.separator, columns, torn)
            elif self.path.suffix.lower() == ".parquet":
                batches = parquet_batches(self.path, columns)
            else:
                yield from _objects(self.path)
                return
            for batch in batches:
                yield from torn
                torn.clear()
                yield from plain_rows(batch, where=self.path)
            yield from torn


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        why = str(error).partition("\n")[0].partition(" Is this a ")[0]
        if why.startswith("straddling"):
            why = f"a row of over {_BLOCK:,} bytes; perhaps a quote is not closed"
        raise InputError(f"{path}: cannot be read: {why:.300}; expected {_WHAT}, in UTF-8") from error


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON list, or of JSON lines, one in memory at a time."""
    if path.suffix.lower() == ".json":
        rows = read_elements(path, what=_WHAT)
    else:
        lines = enumerate(read_lines(path, what=_WHAT), start=1)
        rows = (
            parse_json(
                line.encode("utf-8", "surrogateescape"), where=f"{path}, line {number}", what="an object"
            )
            for number, line in lines
            if line.strip()
        )
    for row in rows:
        if not isinstance(row, dict):
            raise InputError(f'{path}: expected a list of objects, [{{"image": ..., "caption": ...}}, ...]')
        yield row


def _check_utf8(path: Path) -> None:
    """Raise a UnicodeDecodeError of a file that is not UTF-8, before Arrow shows its lines to Python."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with path.open("rb") as file:
        while piece := file.read(LARGEST_TEXT):
            decoder.decode(piece)
        decoder.decode(b"", final=True)


def _csv(
    path: Path, separator: str, columns: Sequence[str] | None, torn: list[Skipped]
) -> pa.csv.CSVStreamingReader:
    """Open a CSV file, whose columns are text, or whose names alone are asked for where `columns` is None.

    Rows that do not fit its header go to `torn`. pyarrow's data sets are not used: they read a file of any size far
    ahead of who takes its rows.
    """

    def skip(row: pa.csv.InvalidRow) -> str:
        where = f"{path.name}, {f'line {row.number}' if row.number else f'row {row.text!r:.60}'}"
        why = f"a row of {row.actual_columns} fields, where the header has {row.expected_columns}"
        torn.append(Skipped(where=where, why=why))
        return "skip"

    return pa.csv.open_csv(
        path,
        parse_options=pa.csv.ParseOptions(
            delimiter=separator, newlines_in_values=True, invalid_row_handler=skip
        ),
        read_options=pa.csv.ReadOptions(block_size=_BLOCK, use_threads=False),
        convert_options=pa.csv.ConvertOptions(
            column_types=dict.fromkeys(columns or (), pa.string()), include_columns=[*(columns or ())]
        ),
    )


def _separator(path: Path) -> str:
    """Return what separates the fields of a CSV file: what its first line has most of."""
    if path.suffix.lower() == ".tsv":
        return "\t"
    header = next(read_lines(path, what=_WHAT), "")
    return max(_SEPARATORS, key=header.count)
