"""Corpora in one form for all published formats: images or videos with captions, or questions about images.

On disk a corpus is an Arrow table and a manifest with its SHA-256. A question has the answers of several people.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
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
from polypool.tasks.datasets.annotations import DUPLICATE, leaves, plain, printed, wrong_path, wrong_text

ALL = "all"
"""Name of all splits together, unless a split has this name."""
VERSION = 1
"""Version of the written and readable format."""
_MOST_SPLITS = 100
_FITTED = ("train", "val")  # a model is fitted to the first and chosen by the second


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Counts of a corpus: rows of each split, skipped rows and warnings, the latter two in the form of `Findings`."""

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
    """A corpus on disk; open it with `open`. Subclasses clean and identify rows by `clean` and `key`.

    Attributes:
        name: of its files, `<name>.arrow`, `<name>.json`, `<name>.skipped.jsonl` and `<name>.warnings.jsonl`.
        what: the corpus in messages, such as `a corpus`.
        units: names of the rows and of their parts in messages, such as `items` and `captions`.
        texts: name of the texts, such as `captions`.
        row: word before a row's id in messages.
        media: the column with the id of each row's picture or video.
        schema: of the table; every row has an attribute for each field, among them `id`, `split` and `path`.
        batch: rows of a record batch.
        images: the manifest's key of the folder that relative paths start from.
        manifest_kind: class of the manifest.
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
        """Yield the faults of a row (`Skipped`, `Flagged`), then the row with its valid parts, if it has any."""

    @staticmethod
    @abstractmethod
    def key(row: Any) -> str:
        """Return the unique key of a row."""

    @staticmethod
    @abstractmethod
    def shared(table: pa.Table) -> Iterator[Flagged]:
        """Yield content that two splits of a table share, except files of pictures."""

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

        Raises:
            InputError: no usable row, or too many skipped ones (an existing corpus stays unchanged then), a folder that
                another process writes to, or a full disk.
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
        """Yield the valid and new rows, and log all others."""
        seen, splits = set[str](), set[str]()
        for entry in rows:
            for row in [entry] if isinstance(entry, Skipped | Flagged) else cls.clean(entry, images=images):
                if isinstance(row, Skipped | Flagged):
                    findings.add(row)
                elif (key := cls.key(row)) in seen:
                    findings.add(Skipped(where=f"{cls.row} {row.id}", why=DUPLICATE, split=row.split))
                else:
                    seen.add(key)
                    splits.add(row.split)
                    if len(splits) > _MOST_SPLITS:
                        raise InputError(
                            f"over {_MOST_SPLITS} splits, such as {', '.join(sorted(splits)[:3])}; expected train, val "
                            "and test: is it the right column or field?"
                        )
                    yield row

    @classmethod
    def open(cls, folder: str | Path | Url) -> Self:
        """Open the corpus in a folder, or a local copy of the corpus at a URL; its table is memory-mapped.

        Raises:
            InputError: a missing, half-written or changed corpus, another version, or an invalid manifest.
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
        """Return the corpus with the rows of these pictures or videos; its `digest` stays unchanged."""
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
        """Yield the id of each row's picture or video in the split `train`, if the corpus has one."""
        if "train" in self.splits:
            yield from (id for (id,) in self.rows("train", self.media))

    @property
    def image_folder(self) -> str:
        """The folder that relative paths of images start from; may be empty."""
        return getattr(self.manifest, self.images)

    def image_path(self, row: Any) -> Path:
        """Return the path of the image or video of a row.

        Raises:
            InputError: the row has no path.
        """
        if not row.path:
            raise InputError(
                f"{self.folder}: {row.id} has no file; ingest the corpus again with its images or videos"
            )
        return Path(self.image_folder) / row.path

    def rows(self, split: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Yield some columns of a split's rows, in the order of the file, with one record batch in memory at a time."""
        self.check_split(split)
        for batch in self._table.select([*columns, "split"]).to_batches(max_chunksize=self.batch):
            chosen = self._of(batch, split)
            yield from zip(*(chosen[name].to_pylist() for name in columns), strict=True)

    def records(self, split: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of a split, in the order of the file, as the fields of `Item` or `Question`."""
        self.check_split(split)
        return self._records(self._of(self._table, split))

    def _of(self, table: Any, split: str) -> Any:
        """Return the rows of a split in a table or batch."""
        every = split == ALL and ALL not in self.splits
        return table if every else table.filter(pc.equal(table["split"], split))

    @staticmethod
    def _records(table: pa.Table) -> Iterator[dict[str, Any]]:
        columns = {name: table[name].to_pylist() for name in table.column_names}
        for name in table.column_names:
            if pa.types.is_list(table[name].type):
                columns[name] = list(map(tuple, columns[name]))
        return (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))

    def _lengths(self, split: str, column: str) -> pa.ChunkedArray:
        """Return the length of a list column in each row of a split."""
        self.check_split(split)
        return pc.list_value_length(self._of(self._table, split)[column])

    def _first(self, id: str) -> dict[str, Any]:
        """Return the first row of a picture or video.

        Raises:
            InputError: an unknown id.
        """
        row = pc.index(self._table[self.media], id).as_py()
        if row < 0:
            examples = ", ".join(map(repr, self.ids[:3].to_pylist()))
            raise InputError(f"{self.folder}: no item has the id {id!r}; ids here look like {examples}")
        return next(self._records(self._table.slice(row, 1)))

    def check_split(self, split: str) -> None:
        """Raise InputError for a missing or empty split; `ALL` is always valid."""
        if not (self.splits.get(split) or split == ALL):
            counts = ", ".join(f"{name} ({count:,})" for name, count in self.splits.items())
            raise InputError(f"{self.folder}: no {self.units[0]} in the split {split!r}; there are {counts}")


def _counts(table: pa.Table) -> dict[str, int]:
    """Return the number of rows in each split, in the order of their first rows."""
    return {each["values"]: each["counts"] for each in pc.value_counts(table["split"]).to_pylist()}


def shared_rows(frame: pd.DataFrame, column: str) -> Iterator[tuple[str, str, pd.DataFrame, pd.DataFrame]]:
    """Yield a split that models are fitted to, another split, and the rows of each with values that both have.

    A model could memorise such values. The pair of train and val comes once, with train as the fitted split.
    """
    parts = {str(split): part for split, part in frame.groupby("split", sort=False)}
    for number, fitted in enumerate(_FITTED):
        for other in parts if fitted in parts else ():
            if other not in _FITTED[: number + 1]:
                one, two = parts[fitted], parts[other]
                yield fitted, other, one[one[column].isin(two[column])], two[two[column].isin(one[column])]


def shared_files(table: pa.Table, *, id: str) -> Iterator[Flagged]:
    """Yield the pictures and videos with the same bytes as one of another id in a split that models are fitted to.

    `id` is the name of the column with the ids. The column `sha256` is empty for a row without a file.
    """
    frame = table.select([id, "split", "sha256"]).to_pandas().drop_duplicates()
    for fitted, other, ours, theirs in shared_rows(frame[frame["sha256"] != ""], "sha256"):
        twins = ours.groupby("sha256")[id].agg(list)
        for name, digest in zip(theirs[id], theirs["sha256"], strict=True):
            if twin := next((twin for twin in twins[digest] if twin != name), None):
                yield Flagged(where=f"id {name}, as id {twin}", why=f"the same file in {fitted} and {other}")


__all__ = ["Corpus", "CorpusSummary", "Flagged", "Item", "Skipped", "Tolerance", "write_corpus"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One image or video of a corpus, with its captions.

    Args:
        id: unique in the corpus, and the id of its features in a feature store.
        split: `train`, `val` to choose the best epoch, or `test`; others are kept, and scored with `--split NAME`.
        captions: all of them, in the order of the source; empty for an image of a `QuestionCorpus`.
        path: the image, absolute or below the corpus's folder of images; empty for features without files.
        caption_ids: the source's id of each caption; may be empty.
        sha256: of the file; `write_corpus` computes it, empty without a file.
    """

    id: str
    split: str
    captions: tuple[str, ...] = ()
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
        """Yield the faults of an item and its captions, then the item with the valid ones, spaces normalised."""
        odd_split = wrong_id(row.split, what="a split")
        if why := wrong_id(row.id) or odd_split or wrong_path(row.path, images=images):
            yield Skipped(where=f"id {row.id!r:.60}", why=why, split="" if odd_split else row.split)
            return
        where, ids, numbers, captions = f"id {row.id}", row.caption_ids, [], []
        if ids and len(ids) != len(row.captions):
            yield Skipped(where=where, why="another number of captions than of their ids", split=row.split)
            return
        for number, caption in enumerate(row.captions):
            at = f"{where}, caption {number + 1}"
            text, odd = plain(caption, what="a caption")
            why = wrong_id(ids[number], what="an id of a caption") if ids else None
            if why or not text:
                yield Skipped(where=at, why=why or odd or "", part=True)
            else:
                numbers.append(number)
                captions.append(text)
                if odd:
                    yield Flagged(where=at, why=odd)
        if captions:
            yield replace(
                row, captions=tuple(captions), caption_ids=tuple(ids[each] for each in numbers if ids)
            )
        else:
            yield Skipped(where=where, why="no captions", split=row.split)

    @staticmethod
    def key(row: Item) -> str:
        """Return the id."""
        return row.id

    @staticmethod
    def shared(table: pa.Table) -> Iterator[Flagged]:
        """Yield the captions that equal a caption of a split that models are fitted to."""
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
        """Yield the id, path and SHA-256 of each image or video of a split, in the order of the file."""
        return self.rows(split, "id", "path", "sha256")

    def captions(self, split: str) -> Iterator[Sequence[str]]:
        """Yield the captions of each item of a split, in the order of the file."""
        return (captions for (captions,) in self.rows(split, "captions"))

    def caption_counts(self, split: str) -> list[int]:
        """Return the number of captions of each item of a split, in the order of the file."""
        return self._lengths(split, "captions").to_pylist()

    def items(self, split: str) -> list[Item]:
        """Return the items of a split, in the order of the file; takes seconds for hundreds of thousands."""
        return [Item(**record) for record in self.records(split)]

    def find(self, id: str) -> Item:
        """Return the item with this id, from any split; raises InputError for an unknown id."""
        return Item(**self._first(id))

    def count(self, split: str) -> int:
        """Return the number of items of a split."""
        return len(self._of(self._table, split))

    def some(self, split: str, places: Sequence[int]) -> list[Item]:
        """Return the items at some positions in a split, from 0."""
        return [Item(**record) for record in self._records(self._of(self._table, split).take(places))]


def write_corpus(
    folder: str | Path | Url,
    items: Iterable[Item | Skipped | Flagged],
    *,
    source: dict[str, Any],
    images: str | Path = "",
    tolerance: Tolerance = USUAL,
) -> CorpusSummary:
    """Write a corpus from a stream of items: `corpus.arrow`, then `corpus.json`, and lists of skipped rows and flags.

    `corpus.skipped.jsonl` lists empty captions, items without captions, and all items of an id but the first.
    `corpus.warnings.jsonl` lists captions without a word, with control characters or truncated (over 1,000 words or
    10,000 characters), and pictures and captions in several splits.
    An existing corpus is replaced.

    An example with a feature store, whose sets have the ids of the items (`polypool.tasks.run.Run` trains on them)::

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
        folder: of the corpus; created if missing.
        items: the rows of a reader.
        source: reader and files; any JSON value.
        images: the folder that relative paths of items start from, and that no path leaves.
        tolerance: limits on skipped rows (by default a twentieth of all items, of each split's and of the captions) and
            on warnings.

    Raises:
        InputError: no usable item, too many skipped ones, or a full disk.
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
        path: the image, absolute or below the corpus's folder of images; empty for features without files.
        question_type: its first words, as the source groups them; may be empty.
        answer_type: `yes/no`, `number` or `other`; may be empty.
        answers: raw human answers, in the order of the source; may be empty.
        label: the most frequent of them, which a corpus adds where it is missing; empty without answers.
        sha256: of the image's file; `write_questions` computes it, empty without a file.
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


@dataclass(frozen=True, kw_only=True)
class QuestionSummary(Summary):
    """Counts of a corpus of questions.

    Attributes:
        images: distinct images in each split.
        answers: number of questions by their number of answers, a string as in JSON.
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
        """Yield the faults of a question and its answers, then the question with the valid answers.

        Runs of whitespace in a question become one space; answers, types and the label lose control characters only.
        A missing label becomes the most frequent answer, the first of several.
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
            cleaned, answers = {name: printed(text) for name, text in named.items()}, [*map(printed, answers)]
            if answers and not cleaned["label"]:
                cleaned["label"] = Counter(answers).most_common(1)[0][0]
            yield replace(row, question=words, answers=tuple(answers), **cleaned)

    @staticmethod
    def key(row: Question) -> str:
        """Return the id, with the split for a question without answers: test2015 repeats the questions of test-dev."""
        return "\0".join(("" if row.answers else row.split, row.id))

    @staticmethod
    def shared(table: pa.Table) -> Iterator[Flagged]:
        """Yield the questions whose image also has questions in a split that models are fitted to."""
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
        """Return the distinct images of each split, the questions by number of answers, and the number of answers."""
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
        """Return the number of questions of a split by their number of answers."""
        sizes = pc.value_counts(self._lengths(split, "answers")).to_pylist()
        return {each["values"]: each["counts"] for each in sizes}

    def questions(self, split: str) -> list[Question]:
        """Return the questions of a split, in the order of the file."""
        return [Question(**record) for record in self.records(split)]

    def paths(self, split: str) -> Iterator[tuple[str, str, str]]:
        """Yield the id, path and SHA-256 of each image of a split once, in the order of the file."""
        seen = set[str]()
        for id, path, digest in self.rows(split, "image_id", "path", "sha256"):
            if id not in seen:
                seen.add(id)
                yield id, path, digest

    def items(self, split: str) -> list[Item]:
        """Return the images that questions of a split are about, each once, in the order of the file."""
        return [Item(id=id, split=split, path=path, sha256=sha256) for id, path, sha256 in self.paths(split)]

    def find(self, id: str) -> Item:
        """Return the image with this id, from any split; raises InputError for an unknown id."""
        row = self._first(id)
        return Item(id=id, split=row["split"], path=row["path"], sha256=row["sha256"])


def answers_of_corpus(folder: Path | Url) -> dict[int, int]:
    """Return the number of questions of a corpus by their number of answers, from its manifest alone.

    Raises:
        InputError: a missing or invalid manifest.
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
    """Write a corpus from a stream of questions: `questions.arrow`, `questions.json`, lists of skipped rows and flags.

    `questions.skipped.jsonl` lists empty questions and answers, and all questions of an id but the first.
    `questions.warnings.jsonl` lists questions without a word or truncated, texts with control characters, questions
    whose image is in several splits, and equal pictures in several splits. A question without answers may be in several
    splits, as VQA's test2015 repeats test-dev. An existing corpus is replaced.

    Args and errors: see `polypool.tasks.datasets.corpus.write_corpus`.
    """
    return QuestionSummary(
        **QuestionCorpus.write(folder, questions, source=source, images=images, tolerance=tolerance)
    )


def open_corpus(folder: str | Path | Url) -> Corpus | QuestionCorpus:
    """Open the corpus of captions or of questions in a folder or at a URL.

    Both have `splits`, `digest`, `ids` (of images or videos), `items(split)` (with `id`, `split` and `path`) and
    `image_path(item)`.

    Raises:
        InputError: no corpus, two corpora, or an invalid one.
    """
    folder = place(folder)
    captions, questions = (folder / f"{kind.name}.json" for kind in (Corpus, QuestionCorpus))
    if (has_questions := exists(questions)) and exists(captions):
        raise InputError(
            f"{folder}: has both {captions.name} and {questions.name}; keep each corpus in a separate folder"
        )
    return QuestionCorpus.open(folder) if has_questions else Corpus.open(folder)


@dataclass(frozen=True, kw_only=True)
class PicturedItem:
    """An image or video as a page shows it; without a file, by its first caption."""

    id: str
    file: Path | None
    caption: str = ""


def pictured(corpus: Corpus | QuestionCorpus, item: Item | Question) -> PicturedItem:
    """Return an item, or the image of a question, as a page shows it."""
    file = media_file(corpus, item)
    if isinstance(item, Item):
        return PicturedItem(id=item.id, file=file, caption=item.captions[0])
    return PicturedItem(id=item.image_id, file=file)


def media_file(corpus: Corpus | QuestionCorpus, item: Item | Question) -> Path | None:
    """Return the file of an item, or of the image of a question.

    None if the item names no file, or one that is missing or outside the corpus's folder of images.
    """
    if not item.path or leaves(item.path, folder=corpus.image_folder):
        return None
    path = Path(os.path.normpath(corpus.image_path(item)))
    return path if path.is_file() else None
