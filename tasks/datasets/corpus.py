"""Corpora in one form, whatever format they were published in: images or videos with captions, or with questions.

On disk a corpus is an Arrow table beside a manifest that has its SHA-256. Questions have the answers of several people.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain, compress, islice
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
from polypool.infra.storage import Url, exists, fetch, local, place, publish, read_json, staging
from polypool.infra.store.findings import (
    SKIPPED,
    USUAL,
    WARNINGS,
    Findings,
    Flagged,
    Skipped,
    Tolerance,
    describe,
    wrong_id,
)
from polypool.tasks.datasets.annotations import leaves, plain, printed, wrong_path, wrong_text

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
    """A corpus on disk; open it with `open`. A kind of corpus says in `clean` and `key` what its rows keep.

    Attributes:
        name: of its files, `<name>.arrow`, `<name>.json`, `<name>.skipped.jsonl` and `<name>.warnings.jsonl`.
        what: the corpus in messages, such as `a corpus`.
        units: in messages, its rows and what each row has several of, such as `items` and `captions`.
        texts: what a text is called, such as `captions`.
        row: what messages put before a row's id.
        media: the column that has the id of each row's picture or video.
        schema: of the table; every row has an attribute for each field, among them `id`, `split` and `path`.
        batch: rows of a record batch.
        images: the manifest's key of the folder that relative paths start from.
    """

    name: ClassVar[str]
    what: ClassVar[str]
    units: ClassVar[tuple[str, str]]
    texts: ClassVar[str]
    row: ClassVar[str]
    media: ClassVar[str]
    schema: ClassVar[pa.Schema]
    batch: ClassVar[int]
    images: ClassVar[str]
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
    def distinct(row: Any, known: set[str]) -> Iterator[Any]:
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
        seen, known, splits = set[str](), set[str](), set[str]()
        for entry in rows:
            for row in [entry] if isinstance(entry, Skipped | Flagged) else cls.clean(entry, images=images):
                if isinstance(row, Skipped | Flagged):
                    findings.add(row)
                    continue
                if (key := cls.key(row)) in seen:
                    where, why = f"{cls.row} {row.id}", "duplicate id; the first is kept"
                    findings.add(Skipped(where=where, why=why, split=row.split))
                    continue
                seen.add(key)
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
                its manifest is not what it has to be.
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
        table = pa.ipc.open_file(pa.memory_map(os.fsencode(path))).read_all()
        if (counts := _counts(table)) != manifest.splits:
            raise InputError(
                f"{about}: splits must be {counts}, as in {path.name}, not {manifest.splits}; ingest it again"
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


__all__ = ["Corpus", "CorpusSummary", "Flagged", "Item", "Skipped", "Tolerance", "write_corpus"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One image or video of a corpus, with its captions.

    Args:
        id: unique in the corpus, and the id of its features in a feature store.
        split: `train`, `val` to choose the best epoch, or `test`; others are kept, and scored with `--split NAME`.
        captions: all of them, in the order of the source; at least one.
        path: the image, absolute or below the corpus's folder of images; empty where there are only features.
        caption_ids: the source's id of each caption; empty where it has none.
        sha256: of the file; `write_corpus` finds it, empty where there is no file.
    """

    id: str
    split: str
    captions: tuple[str, ...]
    path: str = ""
    caption_ids: tuple[str, ...] = ()
    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class CorpusSummary(Summary):
    """Counts of a corpus, with the number of captions in all splits."""

    captions: int


@dataclass(frozen=True, kw_only=True)
class _Manifest(TableManifest, CorpusSummary):
    images: str


class Corpus(StoredCorpus):
    """A corpus of items on disk; open it with `Corpus.open`."""

    name, what, units, texts, row, media = "corpus", "a corpus", ("items", "captions"), "captions", "id", "id"
    schema = pa.schema(
        [(name, pa.string()) for name in ("id", "split", "path")]
        + [(name, pa.list_(pa.string())) for name in ("captions", "caption_ids")]
        + [("sha256", pa.string())]
    )
    batch, images, manifest_kind = 4096, "images", _Manifest

    @staticmethod
    def clean(row: Item, *, images: str | Path = "") -> Iterator[Item | Skipped | Flagged]:
        """Yield what is wrong with an item and its captions, then the item with the good ones, spaces normalised."""
        odd_split = wrong_id(row.split, what="a split")
        if why := wrong_id(row.id) or odd_split or wrong_path(row.path, images=images):
            yield Skipped(where=f"id {row.id!r:.60}", why=why, split="" if odd_split else row.split)
            return
        where, ids, kept, captions = f"id {row.id}", row.caption_ids, [], []
        if ids and len(ids) != len(row.captions):
            yield Skipped(where=where, why="another number of captions than of their ids", split=row.split)
            return
        for number, caption in enumerate(row.captions):
            at = f"{where}, caption {number + 1}"
            text, odd = plain(caption, what="a caption")
            why = wrong_id(ids[number], what="an id of a caption") if ids else None
            if why or not text:
                yield Skipped(where=at, why=why or odd or "", part=True)
                continue
            kept.append(number)
            captions.append(text)
            if odd:
                yield Flagged(where=at, why=odd)
        if captions:
            yield replace(row, captions=tuple(captions), caption_ids=tuple(ids[each] for each in kept if ids))
        else:
            yield Skipped(where=where, why="no captions", split=row.split)

    @staticmethod
    def distinct(row: Item, known: set[str]) -> Iterator[Item | Skipped]:
        """Yield the captions whose ids others have, then the item without them."""
        if not row.caption_ids:
            yield row
            return
        fresh = list[bool]()
        for id in row.caption_ids:
            fresh.append(id not in known)
            known.add(id)
        for number in (number for number, new in enumerate(fresh, start=1) if not new):
            why = "a caption whose id another one has; the first is kept"
            yield Skipped(where=f"id {row.id}, caption {number}", why=why, part=True)
        if any(fresh):
            captions, ids = (tuple(compress(each, fresh)) for each in (row.captions, row.caption_ids))
            yield replace(row, captions=captions, caption_ids=ids)
        else:
            yield Skipped(where=f"id {row.id}", why="no captions", split=row.split)

    @staticmethod
    def key(row: Item) -> str:
        """Return the id."""
        return row.id

    @staticmethod
    def shared(table: pa.Table) -> Iterator[Flagged]:
        """Yield the captions that are also, letter by letter, in a split that models learn from."""
        frame = table.select(["id", "split", "captions"]).to_pandas().explode("captions")
        frame["number"] = frame.groupby(level=0).cumcount() + 1
        for fitted, other, _, found in shared_rows(frame, "captions"):
            for id, number in zip(found["id"], found["number"], strict=True):
                yield Flagged(
                    where=f"id {id}, caption {number}", why=f"the same caption in {fitted} and {other}"
                )

    @staticmethod
    def counts(table: pa.Table) -> tuple[dict[str, Any], int]:
        """Return the number of captions."""
        captions = pc.sum(pc.list_value_length(table["captions"])).as_py()
        return {"captions": captions}, captions

    def paths(self, split: str) -> Iterator[tuple[str, str, str]]:
        """Yield the id, path and SHA-256 of each image or video of a split, in their order, without holding all."""
        return self.rows(split, "id", "path", "sha256")

    def captions(self, split: str) -> Iterator[Sequence[str]]:
        """Yield the captions of each item of a split, in their order, without holding all."""
        return (captions for (captions,) in self.rows(split, "captions"))

    def caption_counts(self, split: str) -> list[int]:
        """Return how many captions each item of a split has, in their order."""
        self.check_split(split)
        table = self._table.filter(pc.equal(self._table["split"], split))
        return pc.list_value_length(table["captions"]).to_pylist()

    def items(self, split: str) -> list[Item]:
        """Return the items of a split, in the order of the file: seconds where they are hundreds of thousands."""
        return [Item(**record) for record in self.records(split)]

    def find(self, id: str) -> Item:
        """Return the item of an id, of any split; raises InputError where there is none."""
        return Item(**self._first(id))

    def count(self, split: str) -> int:
        """Return the number of items of a split."""
        return len(self._of(self._table, split))

    def some(self, split: str, places: Sequence[int]) -> list[Item]:
        """Return the items at some places of a split."""
        return [Item(**record) for record in self._records(self._of(self._table, split).take(places))]


def write_corpus(
    folder: str | Path | Url,
    items: Iterable[Item | Skipped | Flagged],
    *,
    source: dict[str, Any],
    images: str | Path = "",
    tolerance: Tolerance = USUAL,
) -> CorpusSummary:
    """Write a corpus from a stream of items: `corpus.arrow`, then `corpus.json`, and what was left out or is odd.

    Empty captions, items without captions, and all items of an id but the first are skipped and listed in
    `corpus.skipped.jsonl`; captions without a word, or cut to 1,000, and pictures and captions that splits share are
    listed in `corpus.warnings.jsonl`. A corpus that is there already is replaced.

    A corpus from nothing, and features of its items, which a feature store keeps apart, by the items' ids;
    `polypool.tasks.run.Run` shows how to train on them::

        import numpy as np
        from polypool.infra.store import StoreWriter
        from polypool.tasks.datasets.corpus import Item, write_corpus

        items = [
            Item(id=f"{split}-{n}", split=split, captions=(f"picture {n}", f"number {n} of {split}"))
            for split in ("train", "val", "test")
            for n in range(40)
        ]
        write_corpus("data/mine", items, source={"made": "by hand"})
        rng = np.random.default_rng(0)
        with StoreWriter("data/mine-features", dim=16, dtype="float32", source={"made": "by hand"}) as writer:
            for item in items:  # each a set (N, 16); N may vary
                writer.add(item.id, rng.normal(size=(rng.integers(3, 9), 16)).astype(np.float32))
            writer.close(statistics_of=[item.id for item in items if item.split == "train"])

    Args:
        folder: the corpus; made where it does not exist.
        items: what a reader yields.
        source: reader and files; anything that JSON can hold.
        images: the folder that relative paths of items start from, and that no path leaves.
        tolerance: what may be left out, by default a twentieth of the items and of the captions, and whether what is
            odd is refused.

    Raises:
        InputError: nothing usable came, the tolerance is exceeded, or no space is left.
    """
    return CorpusSummary(**Corpus.write(folder, items, source=source, images=images, tolerance=tolerance))


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One question about one image.

    Args:
        id: unique among the questions of its split, and among all that have answers.
        split: `train`, `val`, `test`, or one without answers such as `test-dev`.
        image_id: the id of the image's features.
        question: its words.
        path: the image, absolute or below the corpus's folder of images; empty where there are only features.
        question_type: its first words, as the source groups them; may be empty.
        answer_type: `yes/no`, `number` or `other`; may be empty.
        answers: what people answered, raw, in the order of the source; none where the source has none.
        label: the answer that most of them gave; empty where there are none.
        sha256: of the image's file; `write_questions` finds it, empty where there is no file.
    """

    id: str
    split: str
    image_id: str
    question: str
    path: str = ""
    question_type: str = ""
    answer_type: str = ""
    answers: tuple[str, ...] = ()
    label: str = ""
    sha256: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """An image that questions of a split are about."""

    id: str
    split: str
    path: str = ""
    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class QuestionSummary(Summary):
    """Counts of a corpus of questions.

    Attributes:
        images: distinct images in each split.
        answers: how many questions have so many answers, by the number as a string, as JSON has it.
    """

    images: dict[str, int]
    answers: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class _QuestionManifest(TableManifest, QuestionSummary):
    images_in: str  # `images` are the counts of the summary


class QuestionCorpus(StoredCorpus):
    """A corpus of questions on disk; open it with `QuestionCorpus.open`."""

    name, what, units, texts = "questions", "a corpus of questions", ("questions", "answers"), "questions"
    row, media, batch, images, manifest_kind = "question", "image_id", 16384, "images_in", _QuestionManifest
    schema = pa.schema(
        [
            (each.name, pa.list_(pa.string()) if each.name == "answers" else pa.string())
            for each in fields(Question)
        ]
    )

    @staticmethod
    def clean(row: Question, *, images: str | Path = "") -> Iterator[Question | Skipped | Flagged]:
        """Yield what is wrong with a question and its answers, then the question with those that are good.

        In a question, runs of whitespace become one space; answers, types and the label lose control characters alone.
        """
        odd_split = wrong_id(row.split, what="a split")
        why = wrong_id(row.id) or wrong_id(row.image_id) or odd_split
        if why := why or wrong_path(row.path, images=images):
            where = f"question {row.id!r:.60}, image {row.image_id!r:.60}"
            yield Skipped(where=where, why=why, split="" if odd_split else row.split)
            return
        where, answers = f"question {row.id}", []
        for number, answer in enumerate(row.answers, start=1):
            if why := wrong_text(answer, what="an answer"):
                yield Skipped(where=f"{where}, answer {number}", why=why, part=True)
            else:
                answers.append(answer)
        words, odd = plain(row.question, what="a question")
        named = {name: getattr(row, name) for name in ("question_type", "answer_type", "label")}
        wrong = next(
            filter(None, (text and wrong_text(text, what="a type or label") for text in named.values())), ""
        )
        if not words or wrong:
            yield Skipped(where=where, why=wrong or odd or "", split=row.split)
        elif row.answers and not answers:
            yield Skipped(where=where, why="no usable answer", split=row.split)
        else:
            if odd:
                yield Flagged(where=where, why=odd)
            if any(printed(text) != text for text in (*answers, *named.values())):
                why = "an answer, type or label with control characters, which are left out"
                yield Flagged(where=where, why=why)
            cleaned = {name: printed(text) for name, text in named.items()}
            yield replace(row, question=words, answers=tuple(map(printed, answers)), **cleaned)

    @staticmethod
    def key(row: Question) -> str:
        """Return the id; of a question without answers with its split, as those of test-dev are in test, too."""
        return "\0".join(("" if row.answers else row.split, row.id))

    @staticmethod
    def shared(table: pa.Table) -> Iterator[Flagged]:
        """Yield the questions whose image has questions in a split that models learn from, too."""
        frame = table.select(["id", "split", "image_id"]).to_pandas()
        for fitted, other, _, found in shared_rows(frame, "image_id"):
            for id, image in zip(found["id"], found["image_id"], strict=True):
                where, why = (
                    f"question {id}, image {image}",
                    f"a question whose image is in {fitted} and {other}",
                )
                yield Flagged(where=where, why=why)

    @staticmethod
    def counts(table: pa.Table) -> tuple[dict[str, Any], int]:
        """Return the distinct images of each split, how many questions have how many answers, and all answers."""
        images = (
            table.select(["split", "image_id"])
            .to_pandas()
            .drop_duplicates()["split"]
            .value_counts(sort=False)
        )
        sizes = pc.list_value_length(table["answers"]).to_pandas().value_counts().sort_index()
        counts = {
            "images": {str(split): int(count) for split, count in images.items()},
            "answers": {str(size): int(count) for size, count in sizes.items()},
        }
        return counts, int((sizes.index * sizes).sum())

    def answer_counts(self, split: str) -> dict[int, int]:
        """Return how many questions of a split have how many answers."""
        self.check_split(split)
        answers = self._table.filter(pc.equal(self._table["split"], split))["answers"]
        sizes = pc.value_counts(pc.list_value_length(answers)).to_pylist()
        return {each["values"]: each["counts"] for each in sizes}

    def questions(self, split: str) -> list[Question]:
        """Return the questions of a split, in the order of the file."""
        return [Question(**record) for record in self.records(split)]

    def paths(self, split: str) -> Iterator[tuple[str, str, str]]:
        """Yield the id, path and SHA-256 of each image of a split once, in their order, without holding them all."""
        seen = set[str]()
        for id, path, digest in self.rows(split, "image_id", "path", "sha256"):
            if id not in seen:
                seen.add(id)
                yield id, path, digest

    def items(self, split: str) -> list[Image]:
        """Return the images that questions of a split are about, each once, in the order of the file."""
        return [Image(id=id, split=split, path=path, sha256=sha256) for id, path, sha256 in self.paths(split)]

    def find(self, id: str) -> Image:
        """Return the image of an id, of any split; raises InputError where there is none."""
        row = self._first(id)
        return Image(id=id, split=row["split"], path=row["path"], sha256=row["sha256"])


def answers_of_corpus(folder: Path | Url) -> dict[int, int]:
    """Return how many questions of the corpus in `folder` have how many answers, by its manifest alone.

    Raises:
        InputError: there is none, or it cannot be read.
    """
    about = folder / f"{QuestionCorpus.name}.json"
    manifest = from_plain(_QuestionManifest, read_json(about, what=QuestionCorpus.what), where=str(about))
    return {int(number): count for number, count in manifest.answers.items()}


def write_questions(
    folder: str | Path | Url,
    questions: Iterable[Question | Skipped | Flagged],
    *,
    source: dict[str, Any],
    images: str | Path = "",
    tolerance: Tolerance = USUAL,
) -> QuestionSummary:
    """Write a corpus from a stream of questions: `questions.arrow`, `questions.json`, what was left out and is odd.

    Empty questions and answers, and all questions of an id but the first are skipped and listed in
    `questions.skipped.jsonl`; questions without a word, or cut to 1,000, and those whose image is in two splits are
    listed in `questions.warnings.jsonl`. Questions without answers may be in several splits, as those of VQA's test-dev
    are in its test split, too. A corpus that is there already is replaced.

    Args and errors are those of `polypool.tasks.datasets.corpus.write_corpus`.
    """
    return QuestionSummary(
        **QuestionCorpus.write(folder, questions, source=source, images=images, tolerance=tolerance)
    )


def open_corpus(folder: str | Path | Url) -> Corpus | QuestionCorpus:
    """Open the corpus in `folder`, which may be a URL, whichever it is.

    Both have `splits`, `digest`, `ids` (of images or videos), `items(split)` (with `id`, `split` and `path`) and
    `image_path(item)`.

    Raises:
        InputError: there is none, there are two, or it cannot be read.
    """
    folder = place(folder)
    captions, questions = (folder / f"{kind.name}.json" for kind in (Corpus, QuestionCorpus))
    if (has_questions := exists(questions)) and exists(captions):
        raise InputError(
            f"{folder}: has both {captions.name} and {questions.name}; keep each corpus in a folder of its own"
        )
    return QuestionCorpus.open(folder) if has_questions else Corpus.open(folder)


@dataclass(frozen=True, kw_only=True)
class PicturedItem:
    """An image or video of a split as a page shows it; where there is no file, by its first caption."""

    id: str
    file: Path | None
    caption: str = ""


def pictured(corpus: Corpus | QuestionCorpus, item: Item | Question) -> PicturedItem:
    """Return an item, or the image that a question is about, as a page shows it."""
    file = media_file(corpus, item)
    if isinstance(item, Item):
        return PicturedItem(id=item.id, file=file, caption=item.captions[0])
    return PicturedItem(id=item.image_id, file=file)


def media_file(corpus: Corpus | QuestionCorpus, item: Item | Image | Question) -> Path | None:
    """Return the file of an item, or of the image that a question is about.

    None where the item names none, it is gone, or it is outside the corpus's folder of images.
    """
    if not item.path or leaves(item.path, folder=corpus.image_folder):
        return None
    path = Path(os.path.normpath(corpus.image_path(item)))
    return path if path.is_file() else None
