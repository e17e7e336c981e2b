"""An Arrow table on disk beside a manifest that has its SHA-256: how every corpus is written and opened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from infra.errors import InputError
from infra.fields import at_least, from_plain
from infra.files import atomic, sha256, write_json
from infra.process.lease import take_folder
from infra.storage.destination import destination
from infra.storage.places import Url, local, place
from infra.storage.reading import at_hand, read_json
from infra.store.findings import SKIPPED, WARNINGS, Findings, Flagged, Skipped, Tolerance, describe
from infra.store.ids import IdSet

Row = TypeVar("Row")
Summary = TypeVar("Summary")


@dataclass(frozen=True, kw_only=True)
class Format:
    """How a kind of corpus is kept in its folder.

    Attributes:
        name: of its files, `<name>.arrow`, `<name>.json`, `<name>.skipped.jsonl` and `<name>.warnings.jsonl`.
        version: the one that is written and can be read.
        what: what it is, in messages, such as `a corpus`.
        rows: what its rows are, in messages, such as `items`.
        parts: what each row has several of, in messages, such as `captions`.
        schema: of the table; every row has an attribute for each field, among them `id`, `split` and `path`.
        batch: rows of a record batch.
        images: the manifest's key of the folder that relative paths start from.
        optional: fields that tables of earlier versions lack.
    """

    name: str
    version: int = 1
    what: str
    rows: str
    parts: str
    schema: pa.Schema
    batch: int
    images: str
    optional: tuple[str, ...] = ()

    @property
    def skipped(self) -> str:
        """Name of the file that lists what was left out."""
        return f"{self.name}.{SKIPPED}"

    @property
    def warnings(self) -> str:
        """Name of the file that lists what is used and odd."""
        return f"{self.name}.{WARNINGS}"


class Tally(Protocol[Row, Summary]):
    """Counts rows while they are written."""

    splits: Counter[str]
    parts: int

    def add(self, rows: list[Row]) -> None:
        """Count some rows."""

    def summary(self, *, skipped: dict[str, Any], flagged: dict[str, Any]) -> Summary:
        """Return the counts, a dataclass that goes to the manifest, with those of `Findings`."""


def write_table(
    folder: str | Path | Url,
    entries: Iterable[Row | Skipped | Flagged],
    *,
    form: Format,
    clean: Callable[[Row], Iterator[Row | Skipped | Flagged]],
    key: Callable[[Row], str],
    duplicate: Callable[[Row], Skipped],
    audit: Callable[[pa.Table], Iterable[Flagged]],
    tally: Tally[Row, Summary],
    source: dict[str, Any],
    images: str | Path,
    tolerance: Tolerance,
) -> Summary:
    """Write a corpus from a stream: the table, then its manifest, and the lists of what was left out and is odd.

    Args:
        folder: the corpus, or its URL; made where it does not exist, and one that is there is replaced.
        entries: rows, what a reader had to leave out, and what is odd.
        form: how they are kept.
        clean: yields what is wrong with a row, and then the row with what is good, if anything is.
        key: rows of one key are duplicates, of which the first is kept.
        duplicate: the case of such a row.
        audit: yields what is odd about the table as a whole, such as what two splits share.
        tally: counts the rows.
        source: reader and files; anything that JSON can hold.
        images: the folder that relative paths start from; empty where there is none.
        tolerance: what may be left out or odd.

    Raises:
        InputError: nothing usable came, the tolerance is exceeded (a corpus that was there stays as it was),
            somebody else writes to the folder, or no space is left.
    """
    images = local(images, what=f"the folder of {form.images}") if images else ""
    to, findings = destination(folder), Findings()
    folder, table_name, manifest_name = to.folder, f"{form.name}.arrow", f"{form.name}.json"
    path = folder / table_name
    with take_folder(folder):
        with atomic(path) as file:
            with pa.ipc.new_file(file, form.schema) as table:
                rows = _usable(entries, findings, clean=clean, key=key, duplicate=duplicate)
                while batch := list(islice(rows, form.batch)):
                    tally.add(batch)
                    table.write_batch(_columns(batch, form.schema))
            if not tally.splits:
                raise InputError(f"{folder}: nothing usable was found; {describe(findings.skipped)}")
            file.flush()
            for case in audit(pa.ipc.open_file(pa.memory_map(str(file.name))).read_all()):
                findings.add(case)
            rows, parts = (tally.splits, form.rows), (tally.parts, form.parts)
            findings.judge(folder, tolerance=tolerance, rows=rows, parts=parts)
        skipped, flagged = findings.close(folder, prefix=f"{form.name}.")
        summary = tally.summary(skipped=skipped, flagged=flagged)
        about = {"version": form.version, "source": source, "sha256": sha256(path)}
        about[form.images] = str(images.resolve()) if images else ""
        to.finish(
            lambda into: write_json(into / manifest_name, about | asdict(summary)),
            (table_name, form.skipped, form.warnings),
        )
        return summary


def _columns(rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array([getattr(row, field.name) for row in rows], field.type) for field in schema]
    return pa.record_batch(columns, schema=schema)


def _usable(
    entries: Iterable[Row | Skipped | Flagged],
    findings: Findings,
    *,
    clean: Callable[[Row], Iterator[Row | Skipped | Flagged]],
    key: Callable[[Row], str],
    duplicate: Callable[[Row], Skipped],
) -> Iterator[Row]:
    """Yield the rows that are good and new, and log all others."""
    seen = IdSet()
    for entry in entries:
        for row in [entry] if isinstance(entry, Skipped | Flagged) else clean(entry):
            if isinstance(row, Skipped | Flagged):
                findings.add(row)
            elif key(row) in seen:
                findings.add(duplicate(row))
            else:
                seen.add(key(row))
                yield row


@dataclass(frozen=True, kw_only=True)
class TableManifest:
    """What `write_table` notes of a table beside its summary, which classes of both add.

    Attributes:
        version: of the format.
        source: reader and files.
        sha256: of the table's file.
        splits: rows in each.
    """

    version: int
    source: dict[str, Any]
    sha256: str
    splits: dict[str, Annotated[int, at_least(1)]]


class StoredTable:
    """A corpus on disk; open it with `open`."""

    form: ClassVar[Format]
    manifest_kind: ClassVar[type[TableManifest]]
    """What its manifest holds."""
    media: ClassVar[str]
    """The column that has the id of each row's picture or video."""

    def __init__(self, folder: Path | Url, manifest: TableManifest, table: pa.Table) -> None:
        self.folder = folder
        self.manifest = manifest
        self._table = table

    @classmethod
    def open(cls, folder: str | Path | Url) -> Self:
        """Open the corpus in `folder`, which may be a URL; its table is memory-mapped.

        Raises:
            InputError: there is none, it is half written or of another version, its bytes were changed, or a field of
                its manifest or a column of its table is not what it has to be.
        """
        folder, form = place(folder), cls.form
        path = folder / f"{form.name}.json"
        manifest = read_json(path, what=f"the manifest of {form.what}, as ingest writes it")
        if not isinstance(manifest, dict) or manifest.get("version") != form.version:
            raise InputError(f"{path}: not {form.what} of version {form.version}; ingest it again")
        manifest = from_plain(cls.manifest_kind, manifest, where=str(path))
        path = at_hand(folder / f"{form.name}.arrow", sha256=manifest.sha256)
        if not path.is_file() or sha256(path) != manifest.sha256:
            raise InputError(f"{path}: missing, half written or changed (SHA-256 differs); ingest it again")
        table = _read_table(path, form)
        counts = _counts(table)
        if counts != manifest.splits:
            raise InputError(
                f"{folder / form.name}.json: splits must be {counts}, as in {path.name}, not {manifest.splits}; ingest "
                "it again"
            )
        return cls(folder, manifest, table)

    def only(self, ids: pa.Array | pa.ChunkedArray) -> Self:
        """Return the corpus without the rows whose picture or video is none of these; `digest` stays that of all."""
        values = ids if isinstance(ids, pa.Array) else ids.combine_chunks()
        table = self._table.filter(pc.is_in(self._table[self.media], value_set=values))
        return type(self)(self.folder, replace(self.manifest, splits=_counts(table)), table)

    @property
    def splits(self) -> dict[str, int]:
        """Number of rows in each split."""
        return self.manifest.splits

    @property
    def digest(self) -> str:
        """SHA-256 of the table: equal for equal rows, whatever their source."""
        return self.manifest.sha256

    @property
    def image_folder(self) -> str:
        """The folder that relative paths of images start from; empty where there is none."""
        return getattr(self.manifest, self.form.images)

    def of_split(self, split: str) -> pa.Table:
        """Return the rows of a split, in the order of the file.

        Raises:
            InputError: the corpus has no such split, or nothing in it.
        """
        self.check_split(split)
        return self._table.filter(pc.equal(self._table["split"], split))

    def rows(self, split: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Yield some columns of a split's rows, in the order of the file; a few thousand rows are in memory at a time.

        Raises:
            InputError: the corpus has no such split, or nothing in it.
        """
        self.check_split(split)
        for batch in self._table.select([*columns, "split"]).to_batches(max_chunksize=self.form.batch):
            chosen = batch.filter(pc.equal(batch["split"], split))
            yield from zip(*(chosen[name].to_pylist() for name in columns), strict=True)

    def check_split(self, split: str) -> None:
        """Refuse a split that the corpus does not have.

        Raises:
            InputError: there is none, or nothing in it.
        """
        if not self.splits.get(split):
            counts = ", ".join(f"{name} ({count:,})" for name, count in self.splits.items())
            raise InputError(f"{self.folder}: no {self.form.rows} in the split {split!r}; there are {counts}")


def _counts(table: pa.Table) -> dict[str, int]:
    """Return the number of rows in each split."""
    return {each["values"]: each["counts"] for each in pc.value_counts(table["split"]).to_pylist()}


def _read_table(path: Path, form: Format) -> pa.Table:
    """Return a table in memory-mapped form, every value of which is text where the format says so.

    Raises:
        InputError: the file is no table, a column is missing, of another type or has missing values.
    """
    again = "ingest it again"
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a table of {form.rows}: {error}; {again}") from error
    for field in form.schema:
        found = [table.schema.field(at) for at in table.schema.get_all_field_indices(field.name)]
        if not found and field.name in form.optional:
            continue
        if [each.type for each in found] != [field.type]:
            types = " and ".join(str(each.type) for each in found) or "missing"
            raise InputError(f"{path}: the column {field.name} must be {field.type}, not {types}; {again}")
        column = table[field.name]
        inside = [column, *([pc.list_flatten(column)] if pa.types.is_list(field.type) else [])]
        if missing := sum(each.null_count for each in inside):
            raise InputError(
                f"{path}: the column {field.name} must have no missing values, not {missing:,}; {again}"
            )
    return table
