"""Questions about images, with the answers of several people, whatever format they were published in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from infra.errors import InputError
from infra.storage.places import Url
from infra.store.findings import USUAL, Flagged, Skipped, Tolerance
from infra.store.ids import IdSet, is_unicode, wrong_id
from tasks.datasets.audit import shared_files, shared_images
from tasks.datasets.rows import plain, wrong_path
from tasks.datasets.tables import Format, StoredTable, TableManifest, write_table


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
        answers: what people answered, raw, in the order of the source; none where it is not told.
        label: the answer that most of them gave; empty where there are none.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """An image that questions of a split are about."""

    id: str
    split: str
    path: str = ""


_COLUMNS = tuple(each.name for each in fields(Question))
FORMAT = Format(
    name="questions",
    what="a corpus of questions",
    rows="questions",
    parts="answers",
    schema=pa.schema(
        [(name, pa.list_(pa.string()) if name == "answers" else pa.string()) for name in _COLUMNS]
    ),
    batch=16384,
    images="images_in",  # `images` are the counts of the summary
)


@dataclass(frozen=True, kw_only=True)
class QuestionSummary:
    """What a corpus holds.

    Attributes:
        splits: questions in each.
        images: distinct images in each.
        answers: how many questions have so many answers, by the number as a string, as JSON has it.
        skipped: what was left out (`Findings.skipped`).
        flagged: what is used and odd (`Findings.flagged`).
    """

    splits: dict[str, int]
    images: dict[str, int]
    answers: dict[str, int]
    skipped: dict[str, Any] = field(default_factory=dict)
    flagged: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Manifest(TableManifest, QuestionSummary):
    images_in: str


def clean(question: Question, *, images: str | Path = "") -> Iterator[Question | Skipped | Flagged]:
    """Yield what is wrong with a question and its answers, and then the question with those that are good.

    In a question, runs of whitespace become one space; answers stay as they are.

    Args:
        question: what a reader made.
        images: the folder that its path starts from.
    """
    why = wrong_id(question.id) or wrong_id(question.image_id) or wrong_path(question.path, images=images)
    if why:
        where = f"question {question.id!r:.60}, image {question.image_id!r:.60}"
        yield Skipped(where=where, why=why, split=question.split)
        return
    words, odd = plain(question.question, what="question")
    where, answers = f"question {question.id}", []
    for number, answer in enumerate(question.answers):
        if not answer.strip():
            yield Skipped(where=f"{where}, answer {number + 1}", why="an empty answer", part=True)
        elif not is_unicode(answer):
            yield Skipped(
                where=f"{where}, answer {number + 1}", why="an answer that is not valid UTF-8", part=True
            )
        else:
            answers.append(answer)
    texts = (words, question.question_type, question.answer_type, question.label, question.split)
    if not words:
        yield Skipped(where=where, why="an empty question", split=question.split)
    elif not all(map(is_unicode, texts)):
        yield Skipped(where=where, why="a question, type or label that is not valid UTF-8")
    elif question.answers and not answers:
        yield Skipped(where=where, why="no usable answer", split=question.split)
    else:
        if odd:
            yield Flagged(where=where, why=odd)
        yield replace(question, question=words, answers=tuple(answers))


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
    `questions.skipped.jsonl`; questions without a word, or cut to 1,000, and those whose image stands in two splits are
    listed in `questions.warnings.jsonl`. Questions without answers may be in several splits, as those of VQA's test-dev
    are in its test split, too. A corpus that is there already is replaced.

    Args:
        folder: the corpus; made where it does not exist.
        questions: what a reader yields.
        source: reader and files; anything that JSON can hold.
        images: the folder that relative paths start from, and that no path leaves.
        tolerance: what may be left out, a twentieth of the questions and of the answers unless it says otherwise, and
            whether what is odd is refused.

    Raises:
        InputError: nothing usable came, the tolerance is exceeded, or no space is left.
    """
    return write_table(
        folder,
        questions,
        form=FORMAT,
        clean=partial(clean, images=images),
        key=lambda question: "\0".join(("" if question.answers else question.split, question.id)),
        duplicate=lambda question: Skipped(
            where=f"question {question.id}",
            why="duplicate question id; the first is kept",
            split=question.split,
        ),
        audit=partial(_audit, images=images),
        tally=_QuestionTally(),
        source=source,
        images=images,
        tolerance=tolerance,
    )


class _QuestionTally:
    def __init__(self) -> None:
        self.splits, self.answers, self.parts = Counter[str](), Counter[int](), 0
        self.images: dict[str, set[str]] = {}

    def add(self, questions: list[Question]) -> None:
        for each in questions:
            self.splits[each.split] += 1
            self.answers[len(each.answers)] += 1
            self.parts += len(each.answers)
            self.images.setdefault(each.split, set()).add(each.image_id)

    def summary(self, *, skipped: dict[str, Any], flagged: dict[str, Any]) -> QuestionSummary:
        return QuestionSummary(
            splits=dict(self.splits),
            images={split: len(ids) for split, ids in self.images.items()},
            answers={str(number): self.answers[number] for number in sorted(self.answers)},
            skipped=skipped,
            flagged=flagged,
        )


def _audit(table: pa.Table, *, images: str | Path) -> Iterator[Flagged]:
    yield from shared_images(table)
    yield from shared_files(table, id="image_id", images=images)


class QuestionCorpus(StoredTable):
    """A corpus of questions on disk; open it with `QuestionCorpus.open`. Its rows are questions."""

    form, manifest_kind, media = FORMAT, _Manifest, "image_id"
    texts = "questions"

    @property
    def ids(self) -> pa.Array:
        """The ids of the images of all splits, each once, in the order of the file."""
        return pc.unique(self._table["image_id"])

    def questions(self, split: str) -> list[Question]:
        """Return the questions of a split, in the order of the file.

        Raises:
            InputError: the corpus has no such split.
        """
        rows = self.of_split(split)
        columns = [rows[name].to_pylist() for name in _COLUMNS]
        at = _COLUMNS.index("answers")
        columns[at] = list(map(tuple, columns[at]))
        return [Question(**dict(zip(_COLUMNS, row, strict=True))) for row in zip(*columns, strict=True)]

    def paths(self, split: str) -> Iterator[tuple[str, str]]:
        """Yield the id and path of each image of a split once, in the order of the file, without holding them all.

        Raises:
            InputError: the corpus has no such split.
        """
        seen = IdSet()
        for id, path in self.rows(split, "image_id", "path"):
            if id not in seen:
                seen.add(id)
                yield id, path

    def items(self, split: str) -> list[Image]:
        """Return the images that questions of a split are about, each once, in the order of the file.

        Raises:
            InputError: the corpus has no such split.
        """
        return [Image(id=id, split=split, path=path) for id, path in self.paths(split)]

    def image_path(self, of: Question | Image) -> Path:
        """Return where an image, or that of a question, is.

        Raises:
            InputError: the corpus was made without images.
        """
        if not of.path:
            raise InputError(
                f"{self.folder}: {of.id} has no image: this corpus was made without; ingest it again with --images"
            )
        return Path(self.image_folder) / of.path
