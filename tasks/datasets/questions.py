"""Questions about images, with the answers of several people, whatever format they were published in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from polypool.infra.fields import from_plain
from polypool.infra.storage import Url, read_json
from polypool.infra.store.findings import USUAL, Flagged, Skipped, Tolerance
from polypool.infra.store.ids import IdSet, wrong_id
from polypool.tasks.datasets.annotations import plain, printed, wrong_path, wrong_text
from polypool.tasks.datasets.stored_corpus import StoredCorpus, Summary, TableManifest, shared_rows


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
class _Manifest(TableManifest, QuestionSummary):
    images_in: str  # `images` are the counts of the summary


class QuestionCorpus(StoredCorpus):
    """A corpus of questions on disk; open it with `QuestionCorpus.open`."""

    name, what, units, texts = "questions", "a corpus of questions", ("questions", "answers"), "questions"
    row, media, batch, images, manifest_kind = "question", "image_id", 16384, "images_in", _Manifest
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
        seen = IdSet()
        for id, path, digest in self.rows(split, "image_id", "path", "sha256"):
            if seen.add(id):
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
    manifest = from_plain(_Manifest, read_json(about, what=QuestionCorpus.what), where=str(about))
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
