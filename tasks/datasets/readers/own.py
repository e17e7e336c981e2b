"""Your own data: tables and folders of pictures or videos with captions, or of questions with answers.

CSV, TSV, JSON lines, JSON lists and Parquet; data sets on Hugging Face's hub or in a folder, and tar shards of
WebDataset, by `datasets`. Which column means what is guessed by their names where it is not said. Pictures in a data
set become files, of which no name leaves the folder of images.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from polypool.infra.errors import InputError, unknown
from polypool.infra.extras import needed
from polypool.infra.files import existing, existing_folder, identity, make_folder, parse_json, read_json
from polypool.infra.registry import READERS
from polypool.infra.store.findings import Flagged, Skipped
from polypool.tasks.datasets import Reader, Reading
from polypool.tasks.datasets.annotations import leaves
from polypool.tasks.datasets.corpus import CorpusSummary, Item, Question, QuestionSummary
from polypool.tasks.datasets.readers.folders import (
    IMAGES,
    VIDEOS,
    Listing,
    files_below,
    media_below,
    write_picture,
)
from polypool.tasks.datasets.splits import SPLITS, USUAL_SHARES, RandomSplits, split_called

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset


_WHAT = "a table: .csv or .tsv with a header, .jsonl, .json with a list of objects, or .parquet"
_SEPARATORS = (",", ";", "\t", "|")
_TEXT = ".txt"
_MEDIA = (*IMAGES, ".webp", ".bmp", ".tif", ".tiff", *VIDEOS)
_TEXT_FIELDS = ("answer", "caption", "text", "raw", "sentence")
"""The fields of an object that hold its text: VQA's answers on the hub are `{answer, answer_confidence, answer_id}`."""
USUAL = {
    "id": ["image_id", "video_id", "img_id", "item_id", "id"],
    "image": [
        "image",
        "image_path",
        "image_file",
        "img",
        "picture",
        "photo",
        "file_name",
        "filename",
        "file",
        "path",
    ],
    "video": ["video", "video_path", "video_file", "clip"],
    "text": ["caption", "captions", "text", "texts", "sentence", "sentences", "description", "title"],
    "question": ["question"],
    "answer": ["answers", "answer", "multiple_choice_answer"],
    "question_id": ["question_id", "questionid", "qid"],
    "label": ["multiple_choice_answer"],
    "question_type": ["question_type"],
    "answer_type": ["answer_type"],
    "split": ["split", "subset", "partition"],
}
"""By what a column means, the names that suggest it, in small letters; the first that a table has counts."""


@dataclass(frozen=True, kw_only=True)
class DividedReader(Reader):
    """A reader of data that may have no splits of their own."""

    split: str = ""
    """The shares of random train, val and test splits; 80/10/10 where nothing else says the splits."""
    val: int = 0
    """How many random pictures or videos of train become val, where the splits of the data lack that."""
    seed: int = 0
    """Of the random splits."""

    @property
    def random(self) -> RandomSplits:
        """The random splits."""
        return RandomSplits(split=self.split or USUAL_SHARES, seed=self.seed, val=self.val)

    def remarks(self, summary: CorpusSummary | QuestionSummary) -> Iterator[str]:
        """Say how a val split is made where there is none."""
        if "train" in summary.splits and "val" not in summary.splits:
            count = max(1, summary.splits["train"] // 10)
            yield f"no val split, on which `train` chooses the epoch: --val {count} takes it from train at random"


@dataclass(frozen=True, kw_only=True)
class ColumnReader(DividedReader):
    """A reader of a table; what columns mean is guessed by their names where that is not said."""

    pictures_inside: ClassVar[bool] = False
    """Whether the rows hold pictures, and not their paths."""
    image_column: str = ""
    """Pictures, or their paths."""
    text_column: str = ""
    """Captions."""
    question_column: str = ""
    """Questions, where there are no captions."""
    answer_column: str = ""
    """Their answers."""
    question_id_column: str = ""
    """Ids of the questions; the numbers of their rows by default."""
    id_column: str = ""
    """Id of each picture or video; its path by default. Needed where there are features alone."""

    def columns(self, names: Sequence[str], *, divided: bool) -> Columns:
        """Return which of a table's columns means what.

        Questions are those of a table of which a column of questions or answers is given, or that has no captions. A
        column of ids is looked for where there is none of pictures or videos, since there may be features alone, and
        where questions come with their pictures inside, of which each comes with all its questions.

        Args:
            names: the columns of the table.
            divided: whether the splits are random, so that a column of them is not looked for.

        Raises:
            InputError: a column that is given is not there, or one that is needed is neither given nor suggested.
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
        used = {
            "id": id,
            kind: media,
            **{part: found[part] for part in (*texts, *described)},
            "split": given.get("split", "") if divided else found["split"],
        }
        optional = {"id", "split", *described, *((kind,) if id and not self.pictures_inside else ())}
        if lacking := [part for part, name in used.items() if not name and part not in optional]:
            raise _unnamed(lacking, names, kind=kind, ids=not self.pictures_inside)
        guessed = tuple(
            f"guessed: {part}: the column {name!r}"
            + (f" (--{part.replace('_', '-')}-column says another)" if part in given else "")
            for part, name in used.items()
            if name and not given.get(part)
        )
        meaning = {kind: "media", texts[0]: "text"}
        named = {meaning.get(part, part): name for part, name in used.items() if name}
        unread = [name for name in names if name not in named.values()]
        more = ("not read: the columns " + ", ".join(map(repr, unread)),) if unread else ()
        if suggested["id"] in unread:
            asked = f"; --question-id-column {suggested['id']} that of each question" if asks else ""
            more += (
                f"--id-column {suggested['id']} makes it the id of each {kind}, in place of the path{asked}",
            )
        return Columns(named=named, guessed=(*guessed, *more))


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Columns of a table by what they mean.

    Attributes:
        named: names of columns by `media` (paths of pictures or videos), `id` (of each, where that is not its path),
            `text` (captions, or questions) and `split`, those that there are; where texts are questions, `answer`,
            `question_id`, `label` (the answer that most people gave), `question_type` and `answer_type`, too.
        guessed: lines on columns that were not named by the user, and on those that are not read.
    """

    named: Mapping[str, str]
    guessed: tuple[str, ...]

    @property
    def questions(self) -> bool:
        """Whether the texts are questions."""
        return "answer" in self.named


def _unnamed(lacking: Sequence[str], names: Sequence[str], *, kind: str, ids: bool) -> InputError:
    """Return the error of a table in which no column is called as some parts usually are."""
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
        random, opened = self.random, [TableFile(*_said(each)) for each in self.file]
        unsaid = [str(file.path) for file in opened if not file.split]
        if 0 < len(unsaid) < len(opened):
            raise InputError(
                f"--file {' '.join(unsaid)}: say the split, as for the others, such as test={unsaid[0]}"
            )
        apart = not unsaid
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


class TableFile:
    """A file of rows, whose columns are known before its rows are read.

    Args:
        path: the file, whose suffix says its form.
        split: of all its rows; empty where a column has them, or none.

    Attributes:
        names: of the columns.
        separator: of the fields of a CSV file.
        pictures: columns of pictures themselves, which are not among the names.

    Raises:
        InputError: it is missing, empty, damaged, or of no form that is known.
    """

    def __init__(self, path: str | Path, split: str = "") -> None:
        self.path, self.split, self.separator = existing(path, what=_WHAT), split, ""
        self.pictures: tuple[str, ...] = ()
        suffix = self.path.suffix.lower()
        if suffix in (".csv", ".tsv"):
            with self.path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
                header = file.readline()
            self.separator = "\t" if suffix == ".tsv" else max(_SEPARATORS, key=header.count)
            names = next(csv.reader([header], delimiter=self.separator), [])
        elif suffix == ".parquet":
            try:
                schema = pq.read_schema(self.path)
            except (pa.ArrowException, OSError) as error:
                raise self._unreadable(error) from error
            self.pictures = tuple(field.name for field in schema if _holds_pictures(field.type))
            names = [name for name in schema.names if name not in self.pictures]
        elif suffix in (".json", ".jsonl", ".ndjson"):
            self._objects = list(_objects(self.path))
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

    def rows(self, columns: Sequence[str]) -> Iterator[dict[str, Any] | Skipped]:
        """Yield the values of some columns by name, row by row, and the rows that cannot be read.

        Raises:
            InputError: the file is damaged or is not UTF-8.
        """
        if self.separator:
            yield from self._lines()
        elif self.path.suffix.lower() == ".parquet":
            try:
                yield from pq.read_table(self.path, columns=[*columns]).to_pylist()
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                raise self._unreadable(error) from error
        else:
            yield from self._objects

    def _lines(self) -> Iterator[dict[str, Any] | Skipped]:
        try:
            with self.path.open(encoding="utf-8-sig", newline="") as file:
                lines = csv.reader(file, delimiter=self.separator, strict=True)
                next(lines)
                for fields in lines:
                    if len(fields) == len(self.names):
                        yield dict(zip(self.names, fields, strict=True))
                    elif fields:
                        why = f"a row of {len(fields)} fields, where the header has {len(self.names)}"
                        yield Skipped(where=f"{self.path.name}, line {lines.line_num}", why=why)
        except (csv.Error, UnicodeDecodeError, OSError) as error:
            raise self._unreadable(error) from error

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


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON list, or of JSON lines."""
    if path.suffix.lower() == ".json":
        rows = read_json(path, what=_WHAT)
    else:
        with path.open("rb") as file:
            rows = [
                parse_json(line, where=f"{path}, line {number}", what="an object")
                for number, line in enumerate(file, start=1)
                if line.strip()
            ]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f'{path}: expected a list of objects, [{{"image": ..., "caption": ...}}, ...]')
    yield from rows


@READERS.register("folder")
@dataclass(frozen=True, kw_only=True)
class Folder(DividedReader):
    """Read a folder of your own: `a/dog.jpg`, or a video, beside `a/dog.txt`, each line of which is a caption."""

    dir: Path
    """The folder; files may be in folders within."""

    def read(self) -> Reading:
        """Return the files that have a text, in the order of their paths."""
        random = self.random
        folder = existing_folder(self.dir, what="a folder of pictures or videos with texts")
        media = sorted(media_below(folder, _MEDIA, what="pictures or videos"))
        tops = {_top(path) for path in media}
        by_folder = not self.split and tops <= {*SPLITS}
        note = (
            f"guessed: the folders {', '.join(sorted(tops))} are the splits (--split 80/10/10: random ones)"
        )
        return Reading(
            rows=grouped(self._rows(media, by_folder=by_folder), splits=random, own_splits=by_folder),
            source={"media": len(media), **({} if by_folder else asdict(random))},
            images=self.dir.absolute(),
            notes=(note if by_folder else str(random),),
        )

    def _rows(self, media: list[str], *, by_folder: bool) -> Iterator[Row | Skipped | Flagged]:
        texts = {path for path in files_below(self.dir) if path.lower().endswith(_TEXT)}
        lonely = set(texts)
        for path in media:
            split, text = _top(path) if by_folder else "", os.path.splitext(path)[0] + _TEXT
            lonely.discard(text)
            if text not in texts:
                yield Skipped(where=path, why=f"no {_TEXT} file of its name beside it", split=split)
                continue
            try:
                lines = (self.dir / text).read_text("utf-8-sig", "surrogateescape").splitlines()
            except OSError:
                yield Skipped(where=text, why="a text that cannot be read", split=split)
                continue
            captions = tuple(line for line in lines if line.strip())
            yield Row(where=text, id=path, path=path, texts=captions, split=split)
        for path in sorted(lonely):
            yield Flagged(where=path, why="a text beside no picture or video")


def _top(path: str) -> str:
    """Return the split that the uppermost folder of a path is called by; empty where there is none."""
    top, _, rest = path.partition(os.sep)
    return split_called(top) if rest else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A row of a table.

    Attributes:
        where: its place, for messages.
        id: of its picture or video.
        path: of that; empty where there are features alone.
        texts: captions, or one question.
        answers: to it.
        split: of its column; empty where there is none.
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


def row_of(where: str, values: Mapping[str, Any], *, number: int) -> Iterator[Row | Skipped | Flagged]:
    """Yield a row of some values, by the names that `Columns.named` gives them, and what is odd about it.

    Args:
        where: its place, for messages.
        values: of its columns.
        number: of the row, from 1.
    """
    named = [values.get(part) for part in ("media", "id", "split", "question_id")]
    if any(isinstance(value, bool) or not isinstance(value, str | int | None) for value in named):
        why = "a path, an id or a split that is neither text nor a whole number"
        yield Skipped(where=where, why=why)
        return
    path, id, split, question_id = ("" if value is None else str(value).strip() for value in named)
    split = split_called(split)
    if any(isinstance(value, str) and value != value.strip() for value in named[:2]):
        yield Flagged(where=where, why="a path or an id with spaces at its ends, which are left out")
    if not (id or path):
        yield Skipped(where=where, why="a row without a picture or video", split=split)
        return
    if "question_id" in values and not question_id:
        yield Skipped(where=where, why="a question without its id", split=split)
        return
    texts = yield from strings(values.get("text"), what="a text", where=where)
    answers = yield from strings(values.get("answer"), what="an answer", where=where)
    if any("\n" in text for text in texts):
        yield Flagged(
            where=where, why="a text of several lines; if it is none, a quote in the file is not closed"
        )
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


def strings(value: Any, *, what: str, where: str) -> Generator[Skipped, None, tuple[str, ...]]:
    """Return the texts of a cell, that may be a list of them; a missing one is empty, and counted later.

    An object counts as the text in it (`_TEXT_FIELDS`).
    """
    value = _text_in(value)
    held = [_text_in(each) for each in (value if isinstance(value, list) else [value])]
    held = ["" if each is None else each for each in held]
    for each in held:
        if not isinstance(each, str):
            yield Skipped(where=where, why=f"{what} that is not a string", part=True)
    return tuple(each for each in held if isinstance(each, str))


def _text_in(value: Any) -> Any:
    return (
        next((value[name] for name in _TEXT_FIELDS if name in value), value)
        if isinstance(value, dict)
        else value
    )


def grouped(
    rows: Iterable[Row | Skipped | Flagged],
    *,
    splits: RandomSplits,
    own_splits: bool = False,
    questions: bool = False,
    folder: Path | None = None,
) -> Iterator[Item | Question | Skipped | Flagged]:
    """Yield what rows of one picture or video make together, in the order in which these begin.

    Args:
        rows: of all files.
        splits: the random ones.
        own_splits: whether the rows have their own.
        questions: whether texts are questions.
        folder: that paths start from, where rows without a file are to be skipped.

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
        if why := _wrong_path(row.path, folder, listing):
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


def _wrong_path(path: str, folder: Path | None, listing: Listing | None) -> str:
    """Return why a path cannot be used; empty where it can, or where files are not looked for."""
    if not path or folder is None or listing is None:
        return ""
    if not listing.has(path):
        return (
            "an address, and no path of a file; fetch the files first"
            if "://" in path
            else f"no such file in {folder}"
        )
    if leaves(path, folder=folder.absolute()):
        return f"a path that leaves the folder {folder}; --images says another one, / for absolute paths"
    return ""


def _together(
    rows: Sequence[Row], split: str, *, held_out: Set[str], questions: bool, answered: Set[str]
) -> Iterator[Item | Question | Skipped | Flagged]:
    """Yield what rows of one picture or video make together.

    Args:
        rows: of it.
        split: the random one, empty where it is theirs.
        held_out: ids of train whose split is val.
        questions: whether texts are questions.
        answered: the splits whose questions all need answers; another is one of questions alone, as VQA's test-dev.
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

    A question without an id has the number of its first row.
    """
    same: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        same[row.question_id, " ".join(row.texts)].append(row)
    for (question_id, question), group in same.items():
        first = group[0]
        answers = tuple(answer for row in group for answer in row.answers) if answered else ()
        counts = Counter(answer for answer in answers if answer.strip())
        yield Question(
            id=question_id or str(first.number),
            split=split,
            image_id=id,
            question=question,
            path=first.path,
            question_type=first.question_type,
            answer_type=first.answer_type,
            answers=answers,
            label=first.label or (counts.most_common(1)[0][0] if counts else ""),
        )


_PICTURES = ("jpg", "jpeg", "png", "webp")
_TEXTS = ("txt", "caption", "text", "json")


@READERS.register("webdataset")
@dataclass(frozen=True, kw_only=True)
class WebDataset(DividedReader):
    """Read tar shards of WebDataset: `1.jpg` with `1.txt`, or with a caption in `1.json`; pictures become files."""

    shards: tuple[Path, ...]
    """The tar files, compressed or not."""
    images: Path
    """Folder that the pictures are written to, those of each shard in a folder of its own."""

    def read(self) -> Reading:
        """Return the samples, in the order of the shards; their pictures are written while they are read."""
        stems = Counter(path.stem for path in self.shards)
        if twice := [stem for stem, count in stems.items() if count > 1]:
            raise InputError(f"several shards are called {', '.join(sorted(twice))}; rename all but one")
        random, folder = self.random, make_folder(self.images)
        return Reading(
            rows=grouped((row for shard in self.shards for row in _samples(shard, folder)), splits=random),
            source={"files": identity(*self.shards), **asdict(random)},
            images=folder.absolute(),
            notes=(str(random),),
        )


def _samples(shard: Path, folder: Path) -> Iterator[Row | Skipped | Flagged]:
    """Yield the samples of a shard, and write their pictures below `folder`.

    Raises:
        InputError: it is no tar file, is cut short, or has no pictures or no texts.
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
            yield from row_of(where, {"media": path, "text": sample[text]}, number=number)


def _files(part: Any, column: str) -> Any:
    """Return a part whose pictures are left as the bytes of their files."""
    import datasets

    return part.cast_column(column, datasets.Image(decode=False))


def _bytes(picture: Mapping[str, Any] | None) -> bytes:
    """Return the bytes of a picture's file; none where there are none."""
    picture = picture or {}
    if (data := picture.get("bytes")) is None and picture.get("path"):
        data = Path(picture["path"]).read_bytes()
    return data or b""


def _loaded(called: str, *args: Any, **options: Any) -> Any:
    """Return what `datasets.load_dataset` does, whose errors become one."""
    with needed("hf"):
        import datasets
    try:
        return datasets.load_dataset(*args, **options)
    except Exception as error:  # of a network, a file, a name, a data set: it has dozens
        why = str(error).partition("\n")[0]
        raise InputError(
            f"{called}: cannot be loaded by `datasets`: {type(error).__name__}: {why:.300}"
        ) from error


@READERS.register("hf")
@dataclass(frozen=True, kw_only=True)
class HuggingFace(ColumnReader):
    """Read a data set that `datasets` loads: by its name on the hub, or a local folder of Parquet, CSV or pictures.

    Its code is never run. Splits are those it has; one of `train` alone is divided at random.
    """

    name: str
    """Its name on the hub, such as nlphuji/flickr30k, or a local folder."""
    images: Path
    """Folder that its pictures are written to."""
    config: str = ""
    """Which of several in one."""
    pictures_inside = True

    def read(self) -> Reading:
        """Return the rows of all splits; their pictures are written while they are read."""
        loaded = _loaded(self.name, self.name, self.config or None)
        parts = {str(split): part for split, part in loaded.items()}
        if not parts:
            raise InputError(f"{self.name}: has no splits")
        columns = self.columns(next(iter(parts.values())).column_names, divided=True)
        divided = bool(self.split) or {split_called(split) for split in parts} == {"train"}
        random = self.random if divided else None
        folder = make_folder(self.images)
        firsts = accumulate(map(len, parts.values()), initial=1)
        rows = (
            row
            for (split, part), first in zip(parts.items(), firsts, strict=False)  # and the end of the last
            for row in _hub_rows(part, split, columns, folder, divided=divided, first=first)
        )
        return Reading(
            of="questions" if columns.questions else "captions",
            rows=grouped(rows, splits=self.random, own_splits=not divided, questions=columns.questions),
            source={
                "name": self.name,
                "config": self.config,
                "fingerprints": {split: part._fingerprint for split, part in parts.items()},
                "columns": columns.named,
                **(asdict(random) if random else {}),
            },
            images=folder.absolute(),
            notes=(*columns.guessed, str(random or f"splits: {', '.join(parts)}")),
        )


def _hub_rows(
    part: Dataset, split: str, columns: Columns, folder: Path, *, divided: bool, first: int
) -> Iterator[Row | Skipped | Flagged]:
    """Yield the rows of a split, and write their pictures below `folder`, those of one id once.

    Raises:
        InputError: the column of pictures holds none, or one cannot be written.
    """
    import datasets

    named, media = columns.named, columns.named["media"]
    kind, path_of = part.features[media], dict[Any, str]()
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
        values["split"] = "" if divided else split
        id = values.get("id")
        if id is not None and id in path_of:
            yield from row_of(where, values | {"media": path_of[id]}, number=first + number)
            continue
        data = _bytes(row[media])
        if not (kind := _kind(data)):
            why = "a row without a picture that can be read"
            yield Skipped(where=where, why=why, split=split_called(split))
            continue
        path = f"{split}/{number}.{kind}"
        write_picture(folder / path, data)
        if id is not None:
            path_of[id] = path
        yield from row_of(where, values | {"media": path}, number=first + number)


def _kind(data: bytes) -> str:
    """Return the suffix of a picture's file; empty where it is none."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return {"jpeg": "jpg"}.get((image.format or "").lower(), (image.format or "").lower())
    except (OSError, ValueError, Image.DecompressionBombError):
        return ""
