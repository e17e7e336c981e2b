"""A corpus on disk: an Arrow table beside a manifest that has its SHA-256, and the rules that every row keeps."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from polypool.infra.digests import FileDigests
from polypool.infra.errors import InputError
from polypool.infra.fields import at_least, from_plain
from polypool.infra.files import atomic, sha256, write_json
from polypool.infra.locks import lock_folder
from polypool.infra.storage import Url, fetch, local, place, publish, read_json, staging
from polypool.infra.store.findings import SKIPPED, WARNINGS, Findings, Flagged, Skipped, Tolerance, describe
from polypool.infra.store.ids import IdSet

ALL = "all"
"""Names all splits together wherever a split is read, unless one is called so."""
VERSION = 1
"""The one that is written and can be read."""
_MOST_SPLITS = 100
_FITTED = ("train", "val")  # a model is fitted to the first and chosen by the second


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Counts of a corpus: rows of each split, and what was left out or is odd, as `Findings` has it."""

    splits: dict[str, Annotated[int, at_least(1)]]
    skipped: dict[str, Any] = field(default_factory=dict)
    flagged: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TableManifest(Summary):
    """Manifest of a table, to which each kind of corpus adds the fields of its summary."""

    version: int
    source: dict[str, Any]
    sha256: str


class StoredCorpus(ABC):
    """A corpus on disk; open it with `open`. A kind of corpus says in `clean` and `key` what its rows keep."""

    name: ClassVar[str]
    """Of its files, `<name>.arrow`, `<name>.json`, `<name>.skipped.jsonl` and `<name>.warnings.jsonl`."""
    what: ClassVar[str]
    """The corpus in messages, such as `a corpus`."""
    units: ClassVar[tuple[str, str]]
    """In messages, its rows and what each row has several of, such as `items` and `captions`."""
    texts: ClassVar[str]
    """What a text is called, such as `captions`."""
    row: ClassVar[str]
    """What messages put before a row's id."""
    media: ClassVar[str]
    """The column that has the id of each row's picture or video."""
    schema: ClassVar[pa.Schema]
    """Of the table; every row has an attribute for each field, among them `id`, `split` and `path`."""
    batch: ClassVar[int]
    """Rows of a record batch."""
    images: ClassVar[str]
    """The manifest's key of the folder that relative paths start from."""
    manifest_kind: ClassVar[type[TableManifest]]

    def __init__(self, folder: Path | Url, manifest: Any, table: pa.Table) -> None:
        self.folder = folder
        self.manifest = manifest
        self._table = table

    @staticmethod
    @abstractmethod
    def clean(row: Any, *, images: str | Path = "") -> Iterator[Any]:
        """Yield what is wrong with a row (`Skipped`, `Flagged`), then the row with what is good, if anything is."""

    @staticmethod
    def distinct(row: Any, known: IdSet) -> Iterator[Any]:
        """Yield the parts of a row whose ids are among those `known`, to which it adds its own, then the others."""
        yield row

    @staticmethod
    @abstractmethod
    def key(row: Any) -> str:
        """Return what no two rows may share."""

    @staticmethod
    @abstractmethod
    def shared(table: pa.Table) -> Iterator[Flagged]:
        """Yield what two splits of a table share, beside files of pictures."""

    @staticmethod
    @abstractmethod
    def counts(table: pa.Table) -> tuple[dict[str, Any], int]:
        """Return the fields that a kind of corpus adds to the summary, and the number of parts in all rows."""

    @classmethod
    def write(
        cls,
        folder: str | Path | Url,
        rows: Iterable[Any],
        *,
        source: dict[str, Any],
        images: str | Path,
        tolerance: Tolerance,
    ) -> dict[str, Any]:
        """Write a corpus as `write_corpus` does, and return the fields of the summary.

        The table comes first, then its manifest, and the lists of what was left out and is odd.

        Raises:
            InputError: nothing usable came, the tolerance is exceeded (a corpus that was there stays as it was),
                another process writes to the folder, or no space is left.
        """
        images = local(images, what=f"the folder of {cls.images}") if images else ""
        table_name, about_name, findings = f"{cls.name}.arrow", f"{cls.name}.json", Findings()
        out, folder = folder, staging(folder, last=about_name, replace=True)
        with lock_folder(folder):
            with atomic(folder / table_name) as file:
                with pa.ipc.new_file(file, cls.schema) as table, FileDigests(images) as digests:
                    usable = cls._usable(rows, findings, images=images)
                    while batch := list(islice(usable, cls.batch)):
                        values = {name: [getattr(row, name) for row in batch] for name in cls.schema.names}
                        values["sha256"] = digests.of(values["path"])
                        table.write_batch(pa.record_batch(values, schema=cls.schema))
                file.flush()
                with pa.memory_map(os.fsencode(file.name)) as mapped, pa.ipc.open_file(mapped) as opened:
                    written = opened.read_all()
                if not (splits := _counts(written)):
                    raise InputError(f"{folder}: nothing usable was found; {describe(findings.skipped)}")
                for case in chain(cls.shared(written), shared_files(written, id=cls.media)):
                    findings.add(case)
                counts, parts = cls.counts(written)
                kept = {"rows": (splits, cls.units[0]), "parts": (parts, cls.units[1])}
                findings.judge(folder, tolerance=tolerance, **kept)
            skipped, flagged = findings.close(folder, prefix=f"{cls.name}.")
            summary = {"splits": splits} | counts | {"skipped": skipped, "flagged": flagged}
            about = {"version": VERSION, "source": source, "sha256": sha256(folder / table_name)}
            about[cls.images] = str(images.resolve()) if isinstance(images, Path) else ""
            write_json(folder / about_name, about | summary)
            lists = (f"{cls.name}.{SKIPPED}", f"{cls.name}.{WARNINGS}")
            publish(folder, out, [table_name, *lists, about_name])
            return summary

    @classmethod
    def _usable(cls, rows: Iterable[Any], findings: Findings, *, images: str | Path) -> Iterator[Any]:
        """Yield the rows that are good and new, and log all others."""
        seen, known, splits = IdSet(), IdSet(), set[str]()
        for entry in rows:
            for row in [entry] if isinstance(entry, Skipped | Flagged) else cls.clean(entry, images=images):
                if isinstance(row, Skipped | Flagged):
                    findings.add(row)
                    continue
                if not seen.add(cls.key(row)):
                    where, why = f"{cls.row} {row.id}", "duplicate id; the first is kept"
                    findings.add(Skipped(where=where, why=why, split=row.split))
                    continue
                splits.add(row.split)
                if len(splits) > _MOST_SPLITS:
                    raise InputError(
                        f"over {_MOST_SPLITS} splits, such as {', '.join(sorted(splits)[:3])}; expected train, val and "
                        "test: is it the right column or field?"
                    )
                for part in cls.distinct(row, known):
                    if isinstance(part, Skipped):
                        findings.add(part)
                    else:
                        yield part

    @classmethod
    def open(cls, folder: str | Path | Url) -> Self:
        """Open the corpus in `folder`, which may be a URL; its table is memory-mapped, from a copy of it.

        Raises:
            InputError: there is none, it is half written or of another version, its bytes were changed, or a field of
                its manifest or a column of its table is not what it has to be.
        """
        folder = place(folder)
        about = folder / f"{cls.name}.json"
        manifest = read_json(about, what=f"the manifest of {cls.what}, as ingest writes it")
        if not isinstance(manifest, dict) or manifest.get("version") != VERSION:
            raise InputError(f"{about}: not {cls.what} of version {VERSION}; ingest it again")
        manifest = from_plain(cls.manifest_kind, manifest, where=str(about))
        name = f"{cls.name}.arrow"
        path = (fetch(folder, {name: manifest.sha256}) if isinstance(folder, Url) else folder) / name
        if not path.is_file() or sha256(path) != manifest.sha256:
            raise InputError(f"{path}: missing, half written or changed (SHA-256 differs); ingest it again")
        table = cls._read_table(path)
        if (counts := _counts(table)) != manifest.splits:
            raise InputError(
                f"{about}: splits must be {counts}, as in {path.name}, not {manifest.splits}; ingest it again"
            )
        return cls(folder, manifest, table)

    @classmethod
    def _read_table(cls, path: Path) -> pa.Table:
        """Return a memory-mapped table, every value of which is text where the schema requires it.

        Raises:
            InputError: the file is no table, a column is missing, of another type or has missing values.
        """
        again = "ingest it again"
        try:
            table = pa.ipc.open_file(pa.memory_map(os.fsencode(path))).read_all()
            table.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{path}: not a table of {cls.units[0]}: {error}; {again}") from error
        for wanted in cls.schema:
            found = [table.schema.field(at) for at in table.schema.get_all_field_indices(wanted.name)]
            if [each.type for each in found] != [wanted.type]:
                types = " and ".join(str(each.type) for each in found) or "missing"
                raise InputError(
                    f"{path}: the column {wanted.name} must be {wanted.type}, not {types}; {again}"
                )
            column = table[wanted.name]
            inside = [column, *([pc.list_flatten(column)] if pa.types.is_list(wanted.type) else [])]
            if missing := sum(each.null_count for each in inside):
                raise InputError(
                    f"{path}: the column {wanted.name} must have no missing values, not {missing:,}; {again}"
                )
        return table

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
    def ids(self) -> pa.Array:
        """The ids of the pictures or videos of all splits, each once, in the order of the file."""
        return pc.unique(self._table[self.media])

    def training_ids(self) -> Iterator[str]:
        """Yield the ids of the pictures or videos of the split `train`; nothing where there is none."""
        if "train" in self.splits:
            yield from (id for (id,) in self.rows("train", self.media))

    @property
    def image_folder(self) -> str:
        """The folder that relative paths of images start from; empty where there is none."""
        return getattr(self.manifest, self.images)

    def image_path(self, row: Any) -> Path:
        """Return where the image or video of a row is.

        Raises:
            InputError: the corpus has features alone, and no files.
        """
        if not row.path:
            raise InputError(
                f"{self.folder}: {row.id} has no image: this corpus was made without; ingest it again with its images"
            )
        return Path(self.image_folder) / row.path

    def rows(self, split: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Yield some columns of a split's rows, in the order of the file; a few thousand rows are held at a time."""
        self.check_split(split)
        for batch in self._table.select([*columns, "split"]).to_batches(max_chunksize=self.batch):
            chosen = self._of(batch, split)
            yield from zip(*(chosen[name].to_pylist() for name in columns), strict=True)

    def records(self, split: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of a split as the fields of what they were written from, in the order of the file."""
        self.check_split(split)
        return self._records(self._of(self._table, split))

    def _of(self, table: Any, split: str) -> Any:
        """Return the rows of a split of a table or batch."""
        every = split == ALL and ALL not in self.splits
        return table if every else table.filter(pc.equal(table["split"], split))

    @staticmethod
    def _records(table: pa.Table) -> Iterator[dict[str, Any]]:
        columns = {name: table[name].to_pylist() for name in table.column_names}
        for name in table.column_names:
            if pa.types.is_list(table[name].type):
                columns[name] = list(map(tuple, columns[name]))
        return (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))

    def _first(self, id: str) -> dict[str, Any]:
        """Return the first row of a picture or video.

        Raises:
            InputError: there is none.
        """
        place = pc.index(self._table[self.media], id).as_py()
        if place < 0:
            like = ", ".join(map(repr, self.ids[:3].to_pylist()))
            raise InputError(f"{self.folder}: no item has the id {id!r}; ids here look like {like}")
        return next(self._records(self._table.slice(place, 1)))

    def check_split(self, split: str) -> None:
        """Refuse a split that the corpus does not have, or that has nothing in it; so do all that read a split."""
        if not (self.splits.get(split) or split == ALL):
            counts = ", ".join(f"{name} ({count:,})" for name, count in self.splits.items())
            raise InputError(f"{self.folder}: no {self.units[0]} in the split {split!r}; there are {counts}")


def _counts(table: pa.Table) -> dict[str, int]:
    """Return the number of rows in each split, in the order in which splits begin."""
    return {each["values"]: each["counts"] for each in pc.value_counts(table["split"]).to_pylist()}


def shared_rows(frame: pd.DataFrame, column: str) -> Iterator[tuple[str, str, pd.DataFrame, pd.DataFrame]]:
    """Yield a split that models learn from, another, and the rows of both whose values in a column they share.

    Memorised samples would otherwise count as understood. Of train and val, models learn from train.
    """
    parts = {str(split): part for split, part in frame.groupby("split", sort=False)}
    for number, fitted in enumerate(_FITTED):
        for other in parts if fitted in parts else ():
            if other not in _FITTED[: number + 1]:
                one, two = parts[fitted], parts[other]
                yield fitted, other, one[one[column].isin(two[column])], two[two[column].isin(one[column])]


def shared_files(table: pa.Table, *, id: str) -> Iterator[Flagged]:
    """Yield the pictures and videos that have the same bytes as another in a split that models learn from.

    The column `id` names the picture, and `sha256` is empty where there is no file.
    """
    frame = table.select([id, "split", "sha256"]).to_pandas().drop_duplicates()
    for fitted, other, ours, theirs in shared_rows(frame[frame["sha256"] != ""], "sha256"):
        twins = ours.groupby("sha256")[id].agg(list)
        for name, digest in zip(theirs[id], theirs["sha256"], strict=True):
            if twin := next((twin for twin in twins[digest] if twin != name), None):
                yield Flagged(
                    where=f"id {name}, as id {twin}", why=f"the same picture in {fitted} and {other}"
                )
