"""Your own data: tables and folders of pictures or videos with captions, or of questions with answers.

Forms: CSV, TSV, JSON, JSON lines and Parquet; the package `datasets` reads data sets on Hugging Face's hub or in
a folder, and tar shards of WebDataset. Columns without an option are guessed by their names. Pictures inside a data set
become files below the folder of images.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from polypool.infra.errors import InputError, unknown
from polypool.infra.extras import needed
from polypool.infra.files import existing, existing_folder, identity, make_folder, parse_json, read_json
from polypool.infra.pictures import SUFFIXES
from polypool.infra.registry import READERS
from polypool.infra.store.findings import Flagged, Skipped
from polypool.tasks.datasets import Reader, Reading
from polypool.tasks.datasets.annotations import leaves, read_ids
from polypool.tasks.datasets.corpus import CorpusSummary, Item, Question, QuestionSummary
from polypool.tasks.datasets.readers.folders import (
    FRAMES,
    VIDEOS,
    ImageFiles,
    Listing,
    files_below,
    media_below,
    video_files,
    write_picture,
)
from polypool.tasks.datasets.splits import SPLITS, USUAL_SHARES, RandomSplits, split_called

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset


_WHAT = "a table: .csv, .tsv or .txt with a header, .jsonl, .json with a list of objects, or .parquet"
_SEPARATORS = (",", ";", "\t", "|")
_TEXT = ".txt"
_MEDIA = (*SUFFIXES, *VIDEOS)
_TEXT_FIELDS = ("answer", "caption", "text", "raw", "sentence")
"""The fields of an object that hold its text: VQA's answers on the hub are `{answer, answer_confidence, answer_id}`."""
USUAL = {
    "id": ["image_id", "imageid", "video_id", "img_id", "item_id", "id"],
    "image": [
        "image",
        "image_path",
        "image_file",
        "image_name",
        "img",
        "picture",
        "photo",
        "file_name",
        "filename",
        "file",
        "path",
    ],
    "video": ["video", "video_path", "video_file", "clip"],
    "text": [
        *("caption", "captions", "text", "texts", "sentence", "sentences", "description", "desc", "title"),
        "comment",
    ],
    "question": ["question"],
    "answer": ["answers", "direct_answers", "answer", "multiple_choice_answer"],
    "question_id": ["question_id", "questionid", "qid"],
    "label": ["multiple_choice_answer"],
    "question_type": ["question_type"],
    "answer_type": ["answer_type"],
    "split": ["split", "subset", "partition"],
}
"""Usual names of columns by their meaning, in lower case; the first that a table has is taken."""


@dataclass(frozen=True, kw_only=True)
class DividedReader(Reader):
    """A reader of data that may lack splits."""

    split: str = ""
    """The shares of random train, val and test splits; 80/10/10 for data without splits."""
    val: int = 0
    """Number of random pictures or videos of train that become val, for data without val."""
    seed: int = 0
    """Of the random splits."""

    @property
    def random(self) -> RandomSplits:
        """The random splits."""
        return RandomSplits(split=self.split or USUAL_SHARES, seed=self.seed, val=self.val)

    def remarks(self, summary: CorpusSummary | QuestionSummary) -> Iterator[str]:
        """Say how to make a missing val split."""
        if "train" in summary.splits and "val" not in summary.splits:
            pictures = summary.images if isinstance(summary, QuestionSummary) else summary.splits
            count = max(1, pictures["train"] // 10)
            how = "give it a share" if self.split else f"--val {count} takes it from train at random"
            yield f"no val split, on which `train` chooses the epoch: {how}"


@dataclass(frozen=True, kw_only=True)
class ColumnReader(DividedReader):
    """A reader of a table; columns without an option are guessed by their names."""

    pictures_inside: ClassVar[bool] = False
    """Whether the rows hold pictures, and not their paths."""
    image_column: str = ""
    """Pictures, or their paths."""
    text_column: str = ""
    """Captions."""
    question_column: str = ""
    """Questions, for a table without captions."""
    answer_column: str = ""
    """Their answers."""
    question_id_column: str = ""
    """Ids of the questions; the numbers of their rows by default."""
    id_column: str = ""
    """Id of each picture or video; its path by default. Needed for features without files."""

    def columns(self, names: Sequence[str], *, divided: bool) -> tuple[dict[str, str], list[str]]:
        """Return the columns of a table by their meaning, and notes on guessed and unread ones.

        Meanings: `media` (pictures or videos, or their paths), `id` (of each, if not its path), `text` (captions or
        questions) and `split`; with questions also `answer`, `question_id`, `label` (the most frequent answer),
        `question_type` and `answer_type`.

        A table has questions if a column of questions or answers is given, or if it has a column of questions and none
        of captions. Ids are guessed only without a column of pictures or videos, or for questions with pictures inside
        the table, because several of them may repeat one picture. Of `id` and `video_id`, `id` is the question's.

        Args:
            names: the columns of the table.
            divided: whether the splits are random, or named by the files or by the hub's data set; then no column of
                splits is guessed.

        Raises:
            InputError: a given column is missing, or a needed one is neither given nor guessed.
        """
        flags = {part: f"{part}_column" for part in USUAL}
        given = {part: getattr(self, flag) for part, flag in flags.items() if hasattr(self, flag)}
        for part, name in given.items():
            if name and name not in names:
                raise unknown(f"column (--{part}-column)", name, names)
        small = {name.strip().lower(): name for name in reversed(names)}
        suggested = {
            part: next((small[name] for name in usual if name in small), "") for part, usual in USUAL.items()
        }
        found = {part: given.get(part) or suggested[part] for part in USUAL}
        asks = given.get("question") or given.get("answer") or (not found["text"] and found["question"])
        kind = "video" if given.get("video") or (not found["image"] and found["video"]) else "image"
        described = ["question_id", "label", "question_type", "answer_type"] if asks else []
        texts = ["question", "answer"] if asks else ["text"]
        media = found[kind] if given.get(kind) or found[kind] != given["id"] else ""
        id = given["id"] or ("" if media and not (self.pictures_inside and asks) else suggested["id"])
        if id not in ("", small.get("id")):  # beside `video_id`, `id` is the question's, as in MSRVTT-QA
            found["question_id"] = found["question_id"] or small.get("id", "")
        used = {
            "id": id,
            kind: media,
            **{part: found[part] for part in (*texts, *described)},
            "split": given.get("split", "") if divided else found["split"],
        }
        optional = {"id", "split", *described, *((kind,) if id and not self.pictures_inside else ())}
        if lacking := [part for part, name in used.items() if not name and part not in optional]:
            raise _unnamed(lacking, names, kind=kind, ids=not self.pictures_inside)
        notes = [
            f"guessed: {part}: the column {name!r}"
            + (f" (--{part.replace('_', '-')}-column says another)" if part in given else "")
            for part, name in used.items()
            if name and not given.get(part)
        ]
        meaning = {kind: "media", texts[0]: "text"}
        named = {meaning.get(part, part): name for part, name in used.items() if name}
        if unread := [name for name in names if name not in named.values()]:
            notes.append("not read: the columns " + ", ".join(map(repr, unread)))
        if suggested["id"] in unread:
            asked = f"; --question-id-column {suggested['id']} the id of each question" if asks else ""
            notes.append(
                f"--id-column {suggested['id']} makes it the id of each {kind}, in place of the path{asked}"
            )
        return named, notes


def _unnamed(lacking: Sequence[str], names: Sequence[str], *, kind: str, ids: bool) -> InputError:
    """Return the error for a table without the usual names of some columns."""
    flags = [f"--{part}-column" for part in lacking]
    if kind in lacking and ids:
        own = f"--id-column where there are features alone, or --{kind}-column where there are {kind}s"
        flags = [own, *(flag for flag in flags if flag != f"--{kind}-column")]
        lacking = [f"id or {kind}", *(part for part in lacking if part != kind)]
    return InputError(
        f"no column is called as one of {' and '.join(lacking)} usually is; say which it is with "
        f"{', and '.join(flags)}: the table has {', '.join(names)}"
    )


@READERS.register("table")
@dataclass(frozen=True, kw_only=True)
class Table(ColumnReader):
    """Read a table of your own: CSV, TSV, JSON, JSON lines or Parquet, with a picture or video and a text in each row.

    A picture's captions are in several rows, or a list in one; the answers to a question likewise. A list of questions
    has a list with an answer to each. Columns without an option are guessed by their names, and printed.
    """

    file: tuple[Path, ...]
    """The table; several files have the same columns. `train=a.csv val=b.csv test=c.csv` says which split each is."""
    video_column: str = ""
    """Paths of videos, instead of pictures."""
    split_column: str = ""
    """train, val or test; `validation`, `dev` and the like are understood."""
    lists: tuple[Path, ...] = ()
    """Lists of each split's pictures or videos, `train=a.txt val=b.txt test=c.txt`: ids, paths or file names, one a
    line. Rows in no list are left out."""
    images: Path | None = None
    """Folder that the paths start from, by default the table's; a file name alone is also found in its subfolders.
    Without paths, pictures are found in it by id."""
    videos: Path | None = None
    """Folder in which the videos of a table without paths are found by id: files, or a folder of frames for each."""

    def read(self) -> Reading:
        """Return the rows grouped by picture or video, in the order of their first rows."""
        if not self.file:
            raise InputError("--file names no table")
        if sum(map(bool, (self.split, self.split_column, self.lists))) > 1:
            raise InputError("give one of --split, --split-column and --lists")
        random, opened = self.random, [TableFile(each) for each in self.file]
        unnamed = [str(file.path) for file in opened if not file.split]
        if 0 < len(unnamed) < len(opened):
            raise InputError(
                f"--file {' '.join(unnamed)}: say the split, as for the others, such as test={unnamed[0]}"
            )
        split_files = not unnamed
        if split_files and (self.split or self.split_column or self.lists):
            raise InputError("--file says the splits; leave out --split, --split-column and --lists")
        inside = opened[0].pictures_note()
        try:
            divided = split_files or bool(self.split or self.lists)
            named, notes = self.columns(opened[0].names, divided=divided)
        except InputError as error:
            raise InputError("; ".join([str(error), *inside])) from error
        notes += inside
        for other in opened[1:]:
            if lacking := [name for name in named.values() if name not in other.names]:
                raise InputError(
                    f"{other.path}: has no column {', '.join(lacking)}, which {opened[0].path} has"
                )
        common = Path(os.path.commonpath([file.path.parent.absolute() for file in opened]))
        folder = self.videos or self.images or common
        find = self._finder(named.get("media", ""))
        rows = _rows(opened, named, folder=None if self.images else common)
        if self.images and not find:
            rows = _in_subfolders(rows, folder=self.images)
        lists = [_split_and_file(path) for path in self.lists]
        if unnamed := [str(path) for split, path in lists if not split]:
            raise InputError(f"--lists {' '.join(unnamed)}: say the split, such as test={unnamed[0]}")
        if lists:
            rows = _by_lists(rows, lists)
        own_splits, questions = bool(split_files or lists or "split" in named), "answer" in named
        if separators := {file.separator for file in opened} - {"", ",", "\t"}:
            notes.append(f"guessed: fields are separated by {' and '.join(map(repr, separators))}")
        if not (own_splits or self.split):
            _refuse_split_names(opened, folder=common)
        if not own_splits:
            also = "" if self.split else " (--split says others, --split-column a column of them)"
            notes.append(f"{random}{also}")
        return Reading(
            of="questions" if questions else "captions",
            rows=grouped(
                _found(rows, find, folder=folder) if find else rows,
                folder=None if find else folder,
                splits=random,
                own_splits=own_splits,
                questions=questions,
            ),
            source={
                "files": identity(*(file.path for file in opened), *(path for _, path in lists)),
                "columns": named,
                **({"splits": [file.split for file in opened]} if split_files else {}),
                **({"lists": [split for split, _ in lists]} if lists else {}),
                **({} if own_splits and not self.val else asdict(random)),
            },
            images=folder.absolute() if "media" in named or find else "",
            notes=notes,
        )

    def _finder(self, media: str) -> Callable[[str], str | None] | None:
        """Return the function from an id to its path, for a table without a column of paths (`media`); or None.

        Raises:
            InputError: `videos` with such a column, or a folder that is missing or has no pictures or videos.
        """
        if self.videos and media:
            raise InputError(
                f"--videos finds videos by id, and the column {media!r} has paths: --images says the folder that they "
                f"start from, --id-column {media} makes them ids"
            )
        if self.videos:
            return video_files(existing_folder(self.videos, what="a folder of videos")).get
        return ImageFiles(self.images).find if self.images and not media else None


def _found(
    rows: Iterable[Row | Skipped | Flagged], find: Callable[[str], str | None], *, folder: Path
) -> Iterator[Row | Skipped | Flagged]:
    """Set the path of each row by its id; skip rows whose id has no file."""
    for row in rows:
        if isinstance(row, Row) and not (path := find(row.id)):
            where, why = f"{row.where}, id {row.id}", f"no such picture or video in {folder}"
            yield Skipped(where=where, why=why, split=row.split)
        else:
            yield replace(row, path=path) if isinstance(row, Row) else row


def _in_subfolders(
    rows: Iterable[Row | Skipped | Flagged], *, folder: Path
) -> Iterator[Row | Skipped | Flagged]:
    """Find the pictures of rows whose path is a file name alone in the subfolders, such as COCO's `train2014`."""
    listing, below = Listing(folder), dict[str, list[str]]()
    for row in rows:
        if isinstance(row, Row) and row.path and not os.path.dirname(row.path) and not listing.has(row.path):
            if not below:
                for path in files_below(folder):
                    below.setdefault(os.path.basename(path), []).append(path)
            if len(paths := below.get(row.path, [])) == 1:
                row = replace(row, path=paths[0])
        yield row


def _by_lists(
    rows: Iterable[Row | Skipped | Flagged], lists: Sequence[tuple[str, Path]]
) -> Iterator[Row | Skipped | Flagged]:
    """Set the split of each row by the list that has its id, path or file name, with or without suffix.

    A name in several lists stays in test, or else in val, so that no test picture is trained on.
    """
    splits = dict[str, str]()
    for split, path in sorted(lists, key=lambda each: [*SPLITS, each[0]].index(each[0])):
        for name in read_ids(path, what="a list of ids or file names, one a line"):
            if splits.get(name, split) != split:
                why = f"in the lists of {splits[name]} and {split}; it stays in {split}"
                yield Flagged(where=name, why=why)
            splits[name] = split
    absent = dict.fromkeys(splits)
    for row in rows:
        if not isinstance(row, Row):
            yield row
            continue
        file = os.path.basename(row.path)
        names = (row.id, row.path, file, os.path.splitext(file)[0])
        if listed := next((name for name in names if name in splits), ""):
            absent.pop(listed, None)
            yield replace(row, split=splits[listed])
        else:
            where = f"{row.where}, {row.path or row.id}"
            yield Skipped(where=where, why="a picture or video in no list", wanted=False)
    for name in absent:
        yield Flagged(where=name, why=f"in the list of {splits[name]}, but not in the table")


def _refuse_split_names(files: Sequence[TableFile], *, folder: Path) -> None:
    """Raise InputError if the paths of files below a folder contain the names of several splits."""
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
    files: Sequence[TableFile], named: Mapping[str, str], *, folder: Path | None
) -> Iterator[Row | Skipped | Flagged]:
    """Yield the rows of files, and unusable ones; paths start from `folder`, or stay unchanged without one.

    Raises:
        InputError: a file is damaged.
    """
    wanted = tuple(dict.fromkeys(named.values()))
    number = 0
    for file in files:
        before, below = number, os.path.relpath(file.path.parent, folder) if folder else os.curdir
        for row in file.rows(wanted):
            if isinstance(row, Skipped):
                yield row
                continue
            number += 1
            values: dict[str, Any] = {part: row.get(name) for part, name in named.items()}
            if file.split:
                values["split"] = file.split
            if below != os.curdir and isinstance(path := values.get("media"), str) and path.strip():
                values["media"] = os.path.join(below, path.strip())
            where = f"{file.path.name}, row {number - before}"
            if file.separator:
                if "\n" in (values.get("text") or ""):
                    why = "a text of several lines; if it is none, a quote in the file is not closed"
                    yield Flagged(where=where, why=why)
                values |= {part: _listed(values[part]) for part in ("text", "answer") if part in values}
            yield from row_of(where, values, number=number)


def _listed(cell: str | None) -> str | list[str] | None:
    """Return the strings of a cell that holds a JSON list of them, as in Flickr30k's table on the hub; or the cell."""
    if not cell or not cell.startswith("["):
        return cell
    try:
        texts = parse_json(cell.encode(), where="a cell", what="a list of strings")
    except InputError:
        return cell
    return texts if all(isinstance(text, str) for text in texts) else cell


def _split_and_file(path: Path) -> tuple[str, Path]:
    """Return the split and the path of `SPLIT=FILE`; without a split, it is empty."""
    split, equals, rest = str(path).partition("=")
    if equals and re.fullmatch(r"[\w-]+", split) and not path.exists():
        return split_called(split), Path(rest)
    return "", path


class TableFile:
    """A file of rows; its columns are known before its rows are read.

    A text file may have the form of Flickr8k and Flickr30K, `dog.jpg#0<tab>caption` without a header.

    Args:
        path: the file, `FILE` or `SPLIT=FILE`; its suffix names its form.

    Attributes:
        path: the file, without the split.
        split: of all its rows; empty if the path names none.
        names: of the columns.
        separator: of the fields of a CSV file.
        pictures: columns of pictures themselves, which are not among the names.

    Raises:
        InputError: a missing, empty or damaged file, a duplicate column, or an unknown suffix.
    """

    def __init__(self, path: Path) -> None:
        self.split, path = _split_and_file(path)
        self.path, self.separator, self._tokens = existing(path, what=_WHAT), "", False
        self.pictures: tuple[str, ...] = ()
        suffix = self.path.suffix.lower()
        if suffix in (".csv", ".tsv", ".txt", ".token"):
            with self.path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
                header = file.readline()
            self.separator = "\t" if suffix == ".tsv" else max(_SEPARATORS, key=header.count)
            self._tokens = bool(re.match(r"[^\t]+#\d+\t", header))
            if self._tokens:
                self.separator, header = "\t", "image\tcaption"
            names = next(csv.reader([header], delimiter=self.separator), [])
        elif suffix == ".parquet":
            try:
                schema = pq.read_schema(self.path)
            except (pa.ArrowException, OSError) as error:
                raise self._unreadable(error) from error
            self.pictures = tuple(field.name for field in schema if _holds_pictures(field.type))
            names = [name for name in schema.names if name not in self.pictures]
        elif suffix in (".json", ".jsonl", ".ndjson"):
            self._objects = _objects(self.path)
            names = [*dict.fromkeys(name for row in self._objects for name in row)]
        else:
            raise InputError(f"{self.path}: ends in {suffix or 'nothing'}, expected {_WHAT}")
        if not names:
            raise InputError(f"{self.path}: is empty; expected {_WHAT}")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InputError(
                f"{self.path}: has several columns called {', '.join(twice)}; rename all but one"
            )
        self.names = tuple(names)

    def pictures_note(self) -> list[str]:
        """Return a line on reading the columns of pictures; empty without any."""
        if not self.pictures:
            return []
        return [
            f"not read: {', '.join(map(repr, self.pictures))}, pictures inside the table: `polypool ingest hf --name "
            f"{self.path.parent} --images DIR --out DIR` reads a folder's tables and writes their pictures to files"
        ]

    def rows(self, columns: Sequence[str]) -> Iterator[dict[str, Any] | Skipped]:
        """Yield the values of each row by column, at least of `columns`, and unreadable rows.

        Raises:
            InputError: a damaged file, or one that is not UTF-8.
        """
        try:
            if self.separator:
                yield from self._lines()
            elif self.path.suffix.lower() == ".parquet":
                yield from pq.read_table(self.path, columns=[*columns]).to_pylist()
            else:
                yield from self._objects
        except (csv.Error, pa.ArrowException, UnicodeDecodeError, OSError) as error:
            raise self._unreadable(error) from error

    def _lines(self) -> Iterator[dict[str, Any] | Skipped]:
        with self.path.open(encoding="utf-8-sig", newline="") as file:
            quoting = csv.QUOTE_NONE if self._tokens else csv.QUOTE_MINIMAL
            lines = csv.reader(file, delimiter=self.separator, strict=True, quoting=quoting)
            if not self._tokens:
                next(lines)
            for fields in lines:
                if len(fields) == len(self.names):
                    if self._tokens:
                        fields[0] = fields[0].rpartition("#")[0]
                    yield dict(zip(self.names, fields, strict=True))
                elif fields:
                    why = f"a row of {len(fields)} fields, where the header has {len(self.names)}"
                    yield Skipped(where=f"{self.path.name}, line {lines.line_num}", why=why)

    def _unreadable(self, error: Exception) -> InputError:
        why = str(error).partition("\n")[0]
        if isinstance(error, csv.Error):
            why += "; perhaps a quote is not closed"
        return InputError(f"{self.path}: cannot be read: {why:.300}; expected {_WHAT}, in UTF-8")


def _holds_pictures(kind: pa.DataType) -> bool:
    """Whether a column holds files themselves, as bytes or as the hub's `{bytes, path}`."""
    if pa.types.is_struct(kind) and "bytes" in kind.names:
        kind = kind.field("bytes").type
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _objects(path: Path) -> list[dict[str, Any]]:
    """Return the objects of JSON lines or of a JSON file.

    A JSON file is a list of objects, or an object: with one such list (TextVQA), of objects by their ids (GQA), or with
    COCO's `images` and `annotations`.
    """
    if path.suffix.lower() == ".json":
        rows = read_json(path, what=_WHAT)
        if isinstance(rows, dict):
            rows = _rows_in(rows)
    else:
        with path.open("rb") as file:
            rows = [
                parse_json(line, where=f"{path}, line {number}", what="an object")
                for number, line in enumerate(file, start=1)
                if line.strip()
            ]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f'{path}: expected a list of objects, [{{"image": ..., "caption": ...}}, ...]')
    return rows


def _rows_in(content: dict[str, Any]) -> Any:
    """Return the list of rows in a JSON object; None if it has none of the forms in `_objects`."""
    lists = {
        name: value
        for name, value in content.items()
        if isinstance(value, list) and value and all(isinstance(row, dict) for row in value)
    }
    if {"images", "annotations"} <= lists.keys():
        files = {image.get("id"): image.get("file_name") for image in lists["images"]}
        return [{"file_name": files.get(row.get("image_id")), **row} for row in lists["annotations"]]
    if len(lists) == 1:
        return next(iter(lists.values()))
    if content and all(isinstance(row, dict) for row in content.values()):
        return [{"question_id" if "question" in row else "id": id, **row} for id, row in content.items()]
    return None


@READERS.register("folder")
@dataclass(frozen=True, kw_only=True)
class Folder(DividedReader):
    """Read a folder of your own: `a/dog.jpg`, or a video, with its captions in `a/dog.txt`, one a line."""

    dir: Path
    """The folder; files may be in folders within."""

    def read(self) -> Reading:
        """Return the files that have a text, in the order of their paths."""
        folder = existing_folder(self.dir, what="a folder of pictures or videos with texts")
        media = sorted(media_below(folder, _MEDIA, what="pictures or videos"))
        tops = {_top(path) for path in media}
        by_folder = not self.split and tops <= {*SPLITS}
        note = (
            f"guessed: the folders {', '.join(sorted(tops))} are the splits (--split 80/10/10: random ones)"
        )
        return Reading(
            rows=grouped(self._rows(media, by_folder=by_folder), splits=self.random, own_splits=by_folder),
            source={"media": len(media), **({} if by_folder else asdict(self.random))},
            images=self.dir.absolute(),
            notes=(note if by_folder else str(self.random),),
        )

    def _rows(self, media: list[str], *, by_folder: bool) -> Iterator[Row | Skipped | Flagged]:
        texts = {path for path in files_below(self.dir) if path.lower().endswith(_TEXT)}
        text_of = {path: os.path.splitext(path)[0] + _TEXT for path in media}
        for path, text in text_of.items():
            split = _top(path) if by_folder else ""
            if text not in texts:
                yield Skipped(where=path, why=f"no {_TEXT} file of the same name", split=split)
            else:
                file = existing(self.dir / text, what="captions, one a line")
                lines = file.read_text("utf-8-sig", "surrogateescape").splitlines()
                captions = tuple(line for line in lines if line.strip())
                yield Row(where=text, id=path, path=path, texts=captions, split=split)
        for path in sorted(texts - {*text_of.values()}):
            yield Flagged(where=path, why="a text without a picture or video")


def _top(path: str) -> str:
    """Return the uppermost folder of a path as the name of a split; empty for a file at the top."""
    top, _, rest = path.partition(os.sep)
    return split_called(top) if rest else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A row of a table.

    Attributes:
        where: its place, for messages.
        id: of its picture or video.
        path: of the picture or video; empty for features without files.
        texts: captions, or one question.
        answers: to the question.
        split: from its column, file or folder; empty without one.
        number: of the row in all files, from 1; the id of a question that has none.
        question_id, label, question_type, answer_type: of a question, as `Question` has them.
    """

    where: str
    id: str
    path: str
    texts: tuple[str, ...]
    answers: tuple[str, ...] = ()
    split: str = ""
    number: int = 0
    question_id: str = ""
    label: str = ""
    question_type: str = ""
    answer_type: str = ""


def row_of(where: str, values: Mapping[str, Any], *, number: int) -> Iterator[Row | Skipped]:
    """Yield a row, or why it is unusable; of a list of questions, a row for each.

    Args:
        where: its place, for messages.
        values: by the meanings that `ColumnReader.columns` gives.
        number: of the row, from 1.
    """
    lists = {part: value for part, value in values.items() if isinstance(value, list)}
    if "answer" in values and len(lists.get("text", ())) > 1:
        if "answer" not in lists or len({*map(len, lists.values())}) > 1:
            yield Skipped(where=where, why="a list of questions without an answer to each")
            return
        for place, each in enumerate(zip(*lists.values(), strict=True), start=1):
            id = f"{values.get('question_id') or number}-{place}"
            own = {**values, "question_id": id, **dict(zip(lists, each, strict=True))}
            yield from row_of(f"{where}, question {place}", own, number=number)
        return
    named = [values.get(part) for part in ("media", "id", "split", "question_id")]
    if any(isinstance(value, bool) or not isinstance(value, str | int | None) for value in named):
        why = "a path, an id or a split that is neither text nor a whole number"
        yield Skipped(where=where, why=why)
        return
    path, id, split, question_id = ("" if value is None else str(value).strip() for value in named)
    split = split_called(split)
    if not (id or path):
        yield Skipped(where=where, why="a row without a picture or video", split=split)
        return
    texts = yield from _strings(values.get("text"), what="a text", where=where)
    answers = yield from _strings(values.get("answer"), what="an answer", where=where)
    about = {part: values.get(part) for part in ("label", "question_type", "answer_type")}
    yield Row(
        where=where,
        id=id or path,
        path=path,
        texts=texts,
        answers=answers,
        split=split,
        number=number,
        question_id=question_id,
        **{part: value for part, value in about.items() if isinstance(value, str)},
    )


def _strings(value: Any, *, what: str, where: str) -> Generator[Skipped, None, tuple[str, ...]]:
    """Return the texts in a cell, which holds one or a list; yield values of other types.

    A missing text becomes an empty one, which the corpus skips and counts. An object stands for its text
    (`_TEXT_FIELDS`).
    """
    value, texts = _text_in(value), list[str]()
    for each in map(_text_in, value if isinstance(value, list) else [value]):
        if isinstance(each, str | None):
            texts.append(each or "")
        else:
            yield Skipped(where=where, why=f"{what} that is not a string", part=True)
    return tuple(texts)


def _text_in(value: Any) -> Any:
    fields = [name for name in _TEXT_FIELDS if name in value] if isinstance(value, dict) else []
    return value[fields[0]] if fields else value


def grouped(
    rows: Iterable[Row | Skipped | Flagged],
    *,
    splits: RandomSplits,
    own_splits: bool = False,
    questions: bool = False,
    folder: Path | None = None,
) -> Iterator[Item | Question | Skipped | Flagged]:
    """Yield an item for each picture or video, or its questions, in the order of their first rows.

    Args:
        rows: of all files.
        splits: the random ones.
        own_splits: whether the rows have splits.
        questions: whether texts are questions.
        folder: that paths start from; rows without a file in it are skipped. If None, files are not checked.

    Raises:
        InputError: wrong `--val`, or too few ids to be divided.
    """
    if splits.val and not own_splits:
        raise InputError(
            f"--val {splits.val} is for data with splits of their own; --split gives random ones shares"
        )
    listing, ids = Listing(folder) if folder else None, defaultdict[str, set[str]](set)
    answered, groups = {"train", "val"}, dict[str, list[Row]]()
    for row in rows:
        if not isinstance(row, Row):
            yield row
            continue
        if listing and row.path and listing.has(frames := row.path.rstrip(FRAMES) + FRAMES):
            row = replace(row, path=frames)
        if listing and folder and row.path and (why := _wrong_path(row.path, folder, listing)):
            yield Skipped(where=f"{row.where}, {row.path}", why=why, split=row.split)
            continue
        if any(answer.strip() for answer in row.answers):
            answered.add(row.split)
        # questions of several splits may be about one picture, of which the corpus warns
        groups.setdefault(f"{row.split}\0{row.id}" if questions and own_splits else row.id, []).append(row)
        ids[row.split].add(row.id)
    held_out = splits.held_out(ids) if splits.val and ids else set()
    random = splits.divide(groups) if groups and not own_splits else {}
    answered |= {*random.values()}
    for key, group in groups.items():
        yield from _together(
            group, random.get(key, ""), held_out=held_out, questions=questions, answered=answered
        )


def _wrong_path(path: str, folder: Path, listing: Listing) -> str:
    """Return why a path cannot be used; empty if it can."""
    if not listing.has(path):
        is_url = "://" in path
        return (
            "an address, and no path of a file; fetch the files first"
            if is_url
            else f"no such file in {folder}"
        )
    if leaves(path, folder=folder.absolute()):
        return f"a path that leaves the folder {folder}; --images says another one, / for absolute paths"
    return ""


def _together(
    rows: Sequence[Row], split: str, *, held_out: Set[str], questions: bool, answered: Set[str]
) -> Iterator[Item | Question | Skipped | Flagged]:
    """Yield the item or the questions of one picture or video.

    Args:
        rows: of this picture or video.
        split: the random one; empty if the rows have splits.
        held_out: ids of train that become val.
        questions: whether texts are questions.
        answered: splits whose questions need answers; other splits have only questions, as VQA's test-dev.
    """
    first, *others = rows
    id, fitting = first.id, [first]
    split = split or ("val" if first.split == "train" and id in held_out else first.split)
    for row in others:
        if row.split != first.split:
            why = "a row in another split than the first one of its picture or video"
        elif row.path != first.path:
            why = "a row of another file than the first one of its id"
        else:
            fitting.append(row)
            continue
        yield Skipped(where=f"{row.where}, id {id}", why=why, split=split, part=not questions)
    if not split:
        yield Skipped(where=f"{first.where}, id {id}", why="a row without a split")
    elif questions:
        yield from _questions(id, split, fitting, answered=split in answered)
    else:
        captions = tuple(text for row in fitting for text in row.texts)
        yield Item(id=id, split=split, captions=captions, path=first.path)


def _questions(id: str, split: str, rows: Sequence[Row], *, answered: bool) -> Iterator[Question]:
    """Yield the questions about a picture, each with the answers of all its rows.

    The id of a question without one is the number of its first row.
    """
    same: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        same[row.question_id, " ".join(row.texts)].append(row)
    for (question_id, question), group in same.items():
        first = group[0]
        answers = tuple(answer for row in group for answer in row.answers) if answered else ()
        yield Question(
            id=question_id or str(first.number),
            split=split,
            image_id=id,
            question=question,
            path=first.path,
            question_type=first.question_type,
            answer_type=first.answer_type,
            answers=answers,
            label=first.label,
        )


_PICTURES = ("jpg", "jpeg", "png", "webp")
_TEXTS = ("txt", "caption", "text", "json")


@READERS.register("webdataset")
@dataclass(frozen=True, kw_only=True)
class WebDataset(DividedReader):
    """Read tar shards of WebDataset: `1.jpg` with `1.txt`, or with a caption in `1.json`; pictures become files.

    A text file (`.txt`, `.text` or `.caption`) holds a caption a line.
    """

    shards: tuple[Path, ...]
    """The tar files, compressed or not."""
    images: Path
    """Folder that the pictures are written to, in a subfolder for each shard."""

    def read(self) -> Reading:
        """Return the samples, in the order of the shards; their pictures are written while they are read."""
        stems = Counter(path.stem for path in self.shards)
        if twice := [stem for stem, count in stems.items() if count > 1]:
            raise InputError(f"several shards are called {', '.join(sorted(twice))}; rename all but one")
        folder = make_folder(self.images)
        return Reading(
            rows=grouped(
                (row for shard in self.shards for row in _samples(shard, folder)), splits=self.random
            ),
            source={"files": identity(*self.shards), **asdict(self.random)},
            images=folder.absolute(),
            notes=(str(self.random),),
        )


def _samples(shard: Path, folder: Path) -> Iterator[Row | Skipped | Flagged]:
    """Yield the samples of a shard, and write their pictures below `folder`.

    Raises:
        InputError: no tar file, or one that is cut short, or without pictures or texts.
    """
    file = str(existing(shard, what="a tar file of WebDataset").absolute())
    part: IterableDataset = _loaded(
        str(shard), "webdataset", data_files=[file], split="train", streaming=True
    )
    kinds = part.column_names or []
    picture, text = (next((kind for kind in usual if kind in kinds), "") for usual in (_PICTURES, _TEXTS))
    if not (picture and text):
        raise InputError(
            f"{shard}: its samples have {', '.join(kinds)}; expected one of {', '.join(_PICTURES)}, and one of "
            f"{', '.join(_TEXTS)}"
        )

    def read() -> Iterator[Any]:
        try:
            yield from _files(part, picture)
        except Exception as error:  # as in `_loaded`
            raise InputError(f"{shard}: cannot be read as a tar file: {error}; fetch it again") from error

    for number, sample in enumerate(read(), start=1):
        key = sample["__key__"]
        where, path = f"{shard.name}, {key}", os.path.join(shard.stem, f"{key}.{picture}")
        if os.path.isabs(key) or os.pardir in Path(key).parts:
            yield Skipped(where=where, why="a name that leaves the folder of images")
        elif not (data := _bytes(sample[picture])) or not sample[text]:
            yield Skipped(where=where, why="a sample without a picture or a text")
        else:
            write_picture(folder / path, data)
            captions = sample[text]
            if isinstance(captions, bytes):  # `datasets` decodes `.txt` and `.json`, but not `.caption`
                captions = captions.decode("utf-8", "surrogateescape")
            if isinstance(captions, str):
                captions = [line for line in captions.splitlines() if line.strip()]
            yield from row_of(where, {"media": path, "text": captions}, number=number)


def _files(part: Any, column: str) -> Any:
    """Return a data set whose pictures are not decoded, but stay the bytes of their files."""
    import datasets

    return part.cast_column(column, datasets.Image(decode=False))


def _bytes(picture: Mapping[str, Any] | None) -> bytes:
    """Return the bytes of a picture's file; empty for a missing picture."""
    picture = picture or {}
    if (data := picture.get("bytes")) is None and picture.get("path"):
        data = Path(picture["path"]).read_bytes()
    return data or b""


def _loaded(called: str, *args: Any, **options: Any) -> Any:
    """Call `datasets.load_dataset`; all its errors become an InputError, which names the data as `called`."""
    with needed("hf"):
        import datasets
    try:
        return datasets.load_dataset(*args, **options)
    except Exception as error:  # dozens of types: network, file, name, data set
        why = str(error).partition("\n")[0]
        raise InputError(
            f"{called}: cannot be loaded by `datasets`: {type(error).__name__}: {why:.300}"
        ) from error


@READERS.register("hf")
@dataclass(frozen=True, kw_only=True)
class HuggingFace(ColumnReader):
    """Read a data set that `datasets` loads: by its name on the hub, or a local folder of Parquet, CSV or pictures.

    Its code is never run. Its splits are kept. In a data set with one, a column may name others; one with `train` alone
    is divided at random.
    """

    name: str
    """Its name on the hub, such as nlphuji/flickr30k, or a local folder."""
    images: Path
    """Folder that its pictures are written to."""
    config: str = ""
    """Configuration, for a data set with several."""
    pictures_inside = True

    def read(self) -> Reading:
        """Return the rows of all splits; their pictures are written while they are read."""
        loaded = _loaded(self.name, self.name, self.config or None)
        parts = {str(split): part for split, part in loaded.items()}
        one, *others = parts.values()
        named, notes = self.columns(one.column_names, divided=bool(self.split or others))
        splits = [*parts]
        if "split" in named:
            words = [str(word) for word in one.unique(named["split"])]
            if len(words) > 1 and {*map(split_called, words)} <= {*SPLITS}:
                splits = words
            else:
                named, notes = self.columns(one.column_names, divided=True)
        divided = bool(self.split) or ("split" not in named and {*map(split_called, parts)} == {"train"})
        folder = make_folder(self.images)
        firsts = accumulate(map(len, parts.values()), initial=1)
        rows = (
            row
            for (split, part), first in zip(parts.items(), firsts, strict=False)  # `firsts` is one longer
            for row in _hub_rows(part, split, named, folder, divided=divided, first=first)
        )
        questions = "answer" in named
        return Reading(
            of="questions" if questions else "captions",
            rows=grouped(rows, splits=self.random, own_splits=not divided, questions=questions),
            source={
                "name": self.name,
                "config": self.config,
                "fingerprints": {split: part._fingerprint for split, part in parts.items()},
                "columns": named,
                **(asdict(self.random) if divided else {}),
            },
            images=folder.absolute(),
            notes=(*notes, str(self.random) if divided else f"splits: {', '.join(splits)}"),
        )


def _hub_rows(
    part: Dataset, split: str, named: Mapping[str, str], folder: Path, *, divided: bool, first: int
) -> Iterator[Row | Skipped | Flagged]:
    """Yield the rows of a split, and write their pictures below `folder`, one file an id.

    Raises:
        InputError: no pictures in their column, or one cannot be written.
    """
    import datasets

    media, path_of = named["media"], dict[Any, str]()
    kind = part.features[media]
    if not isinstance(kind, datasets.Image) and not (isinstance(kind, dict) and "bytes" in kind):
        raise InputError(
            f"the column {media!r} holds {part.features[media]}, and no pictures; name another with --image-column, or "
            "read a table of paths with `ingest table`"
        )
    part = part.select_columns([*dict.fromkeys(named.values())])
    if isinstance(kind, datasets.Image):
        part = _files(part, media)
    for number, row in enumerate(part):
        where = f"{split}, row {number}"
        values: dict[str, Any] = {meant: row[name] for meant, name in named.items()}
        values.setdefault("split", "" if divided else split)
        id = values.get("id")
        if id is not None and id in path_of:
            yield from row_of(where, values | {"media": path_of[id]}, number=first + number)
            continue
        data = _bytes(row[media])
        if not (kind := _kind(data)):
            why = "a row without a picture that can be read"
            yield Skipped(where=where, why=why, split=split_called(values["split"] or split))
            continue
        path = f"{split}/{number}.{kind}"
        write_picture(folder / path, data)
        if id is not None:
            path_of[id] = path
        yield from row_of(where, values | {"media": path}, number=first + number)


def _kind(data: bytes) -> str:
    """Return the suffix of a picture's file; empty for other bytes."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            kind = (image.format or "").lower()
            return "jpg" if kind == "jpeg" else kind
    except (OSError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning):
        return ""
