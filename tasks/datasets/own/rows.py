"""Rows of your own data: which column means what, and what rows of one picture or video make together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

from polypool.infra.errors import InputError, unknown
from polypool.infra.limits import MOST_TEXTS
from polypool.infra.store.findings import Flagged, Skipped
from polypool.tasks.datasets import Reader
from polypool.tasks.datasets.annotation_values import leaves
from polypool.tasks.datasets.corpus import CorpusSummary, Item
from polypool.tasks.datasets.own.arrow_rows import TEXT_FIELDS
from polypool.tasks.datasets.own.gathering import Gathering
from polypool.tasks.datasets.questions import Question, QuestionSummary
from polypool.tasks.datasets.readers.folders import Listing
from polypool.tasks.datasets.splits import USUAL_SHARES, RandomSplits, split_called

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
        """Return which of a table's columns means what, as `find_columns`."""
        flags = {part: f"{part}_column" for part in USUAL}
        given = {part: getattr(self, flag) for part, flag in flags.items() if hasattr(self, flag)}
        return find_columns(names, given, divided=divided, pictures_inside=self.pictures_inside)


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


def find_columns(
    names: Sequence[str], given: Mapping[str, str], *, divided: bool = False, pictures_inside: bool = False
) -> Columns:
    """Return which column of a table means what.

    Questions are those of a table of which a column of questions or answers is given, or that has no captions.
    A column of ids is looked for where there is none of pictures or videos, since there may be features alone, and
    where questions come with their pictures inside, of which each comes with all its questions.

    Args:
        names: the columns of the table.
        given: by those keys of `USUAL` that have an option, the names that the user gave; empty where none is given.
        pictures_inside: whether the rows hold pictures, and not their paths.
        divided: whether the splits are random, so that a column of them is not looked for.

    Raises:
        InputError: a column that is given is not there, or one that is needed is neither given nor suggested.
    """
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
    id = given["id"] or ("" if media and not (pictures_inside and asks) else suggested["id"])
    used = {
        "id": id,
        kind: media,
        **{part: found[part] for part in (*texts, *described)},
        "split": given.get("split", "") if divided else found["split"],
    }
    optional = {"id", "split", *described, *((kind,) if id and not pictures_inside else ())}
    if lacking := [part for part, name in used.items() if not name and part not in optional]:
        raise _unnamed(lacking, names, kind=kind, ids=not pictures_inside)
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


_FIELDS = tuple(each.name for each in fields(Row))
_VALUES = attrgetter(*_FIELDS)


def _row(values: tuple[Any, ...]) -> Row:
    return Row(**dict(zip(_FIELDS, values, strict=True)))


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

    An object counts as the text in it (`TEXT_FIELDS`).
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
        next((value[name] for name in TEXT_FIELDS if name in value), value)
        if isinstance(value, dict)
        else value
    )


def grouped(
    rows: Iterable[Row | Skipped | Flagged],
    *,
    splits: RandomSplits,
    own_splits: bool = False,
    apart: bool = False,
    questions: bool = False,
    folder: Path | None = None,
) -> Iterator[Item | Question | Skipped | Flagged]:
    """Yield what rows of one picture or video make together, in the order in which these begin.

    Args:
        rows: of all files; they wait on disk, and those of one picture are held in memory.
        splits: the random ones.
        own_splits: whether the rows have their own.
        apart: whether each split has files of its own, so that none may have a picture, video or question of another.
        questions: whether texts are questions.
        folder: that paths start from, where rows without a file are to be skipped.

    Raises:
        InputError: wrong `--val`, too few ids to be divided, two splits with the same file, or no room on the disk.
    """
    if splits.val and not own_splits:
        raise InputError(
            f"--val {splits.val} is for data with splits of their own; --split gives random ones shares"
        )
    listing, ids = Listing(folder) if folder else None, defaultdict[str, set[str]](set)
    split_of, overlap = dict[str, str](), list[str]()
    answered = {"train", "val"}
    with Gathering(splits.key) as gathering:
        for row in rows:
            if not isinstance(row, Row):
                yield row
            elif row.path and listing and not listing.has(row.path):
                address = "an address, and no path of a file; fetch the files first"
                why = address if "://" in row.path else f"no such file in {folder}"
                yield Skipped(where=f"{row.where}, {row.path}", why=why, split=row.split)
            elif row.path and folder and leaves(row.path, folder=folder.absolute()):
                why = (
                    f"a path that leaves the folder {folder}; --images says another one, / for absolute paths"
                )
                yield Skipped(where=f"{row.where}, {row.path}", why=why, split=row.split)
            else:
                if any(answer.strip() for answer in row.answers):
                    answered.add(row.split)
                # questions of several splits may be about one picture, of which the corpus warns
                gathering.add(f"{row.split}\0{row.id}" if questions and own_splits else row.id, _VALUES(row))
                if splits.val:
                    ids[row.split].add(row.id)
                same = f"{row.id}\0{' '.join(row.texts)}" if questions else row.id
                if apart and split_of.setdefault(same, row.split) != row.split:
                    overlap.append(f"{row.where}, id {row.id}")
        if overlap:
            what = "the same questions about pictures" if questions else "pictures or videos"
            raise InputError(
                f"{len(overlap):,} rows are {what} that a file of another split has, too, such as {overlap[0]}; take "
                "them out of one of the files"
            )
        held_out = splits.held_out(ids) if ids else set()
        count = gathering.rank()
        ranks = {} if own_splits or not count else splits.divide(count)
        answered |= {*ranks}
        for rank, group in gathering.groups():
            split = next((split for split, range in ranks.items() if rank in range), "")
            yield from _together(
                map(_row, group), split, held_out=held_out, questions=questions, answered=answered
            )


def _together(
    rows: Iterator[Row], split: str, *, held_out: Set[str], questions: bool, answered: Set[str]
) -> Iterator[Item | Question | Skipped | Flagged]:
    """Yield what rows of one picture or video make together.

    Args:
        rows: of it.
        split: the random one, empty where it is theirs.
        held_out: ids of train whose split is val.
        questions: whether texts are questions.
        answered: the splits whose questions all need answers; another is one of questions alone, as VQA's test-dev.
    """
    first = next(rows)
    id, fitting = first.id, [first]
    split = split or ("val" if first.split == "train" and id in held_out else first.split)
    for row in rows:
        if row.split != first.split:
            why = "a row in another split than the first one of its picture or video"
        elif row.path != first.path:
            why = "a row of another file than the first one of its id"
        elif len(fitting) == MOST_TEXTS:
            why = f"a row beyond the first {MOST_TEXTS:,} of its picture or video"
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
