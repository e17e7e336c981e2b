"""VQA 2.0's JSON: questions about photographs, and ten answers to each.

`v2_OpenEnded_mscoco_train2014_questions.json`: `{"data_subtype", "questions": [{"question_id", "image_id", "question"},
...]}`; `v2_mscoco_train2014_annotations.json`: `{"annotations": [{"question_id", "image_id", "question_type",
"answer_type", "multiple_choice_answer", "answers": [{"answer", "answer_id"}, ...]}, ...]}`. `test-dev2015` and
`test2015` have no annotations. The two types and `multiple_choice_answer`, the most frequent answer, may be missing:
OK-VQA's `mscoco_train2014_annotations.json` has only the types.

Models train on `train2014` and report on `val2014`, which is `test` here. A random part of the training images becomes
`val`, for choosing the epoch.

Source: Goyal et al., "Making the V in VQA matter", CVPR 2017.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polypool.infra.errors import InputError, unknown
from polypool.infra.files import identity, read_json
from polypool.infra.process.progress import Progress
from polypool.infra.registry import READERS
from polypool.infra.store.findings import Skipped
from polypool.tasks.datasets import Reader, Reading
from polypool.tasks.datasets.annotations import FORM, misfit
from polypool.tasks.datasets.corpus import Question, QuestionSummary
from polypool.tasks.datasets.readers.folders import ImageFiles
from polypool.tasks.datasets.splits import VQA2, choose

SPLITS = ("train", "val", "test", "test-dev", "test2015")
_SPLIT_OF = {"train2014": "train", "val2014": "test", "test-dev2015": "test-dev", "test2015": "test2015"}
_WHAT = {
    "questions": 'VQA\'s questions, {"questions": [{"question_id", "image_id", "question"}, ...]}',
    "annotations": 'VQA\'s annotations, {"annotations": [{"question_id", "answers", ...}, ...]}',
}


@READERS.register("vqa2")
@dataclass(frozen=True, kw_only=True)
class Vqa2(Reader):
    """Read questions and answers in the form of VQA 2.0.

    train2014 becomes train and val, a random part for choosing the epoch; val2014 becomes test; test-dev2015 and
    test2015 have no answers, and are for results files.
    """

    questions: tuple[Path, ...]
    """v2_OpenEnded_mscoco_*_questions.json, one or several."""
    annotations: tuple[Path, ...] = ()
    """v2_mscoco_*_annotations.json of the annotated parts, in any order."""
    images: Path | None = None
    """Folder of the images, at any depth; a question without one is left out."""
    dev: float = 0.05
    """The share of the training images whose questions become val."""
    seed: int = 0
    """Of the random choice of these."""
    split: tuple[str, ...] = ()
    """train, val, test, test-dev or test2015, of each file of questions, if the files do not name it."""

    def read(self) -> Reading:
        """Return the questions of all files with their answers.

        If a file has annotations, questions without one are skipped. Answers that are not strings are skipped, too;
        their question is kept if it has others.

        Raises:
            InputError: a missing, truncated or malformed file, an unclear split, training questions without
                annotations, or a folder without images.
        """
        return Reading(
            of="questions",
            rows=hold_out(self._questions(), fraction=self.dev, seed=self.seed),
            source={
                "files": identity(*self.questions, *self.annotations),
                "dev": self.dev,
                "seed": self.seed,
                **({"split": self.split} if self.split else {}),
            },
            images=self.images or "",
            published=[VQA2],
        )

    def remarks(self, summary: QuestionSummary) -> Iterator[str]:
        """Say how to get a test split."""
        if "test" not in summary.splits:
            yield (
                "the questions of val2014 are the test split: add v2_OpenEnded_mscoco_val2014_questions.json to "
                "--questions and v2_mscoco_val2014_annotations.json to --annotations"
            )

    def _questions(self) -> Iterator[Question | Skipped]:
        files, splits = ImageFiles(self.images) if self.images else None, self.split
        for split in splits:
            if split not in SPLITS:
                raise unknown("split", split, SPLITS)
        if len(splits) not in (0, 1, len(self.questions)):
            raise InputError(
                f"{len(splits)} splits for {len(self.questions)} files of questions: expected one for each, or one "
                "for all"
            )
        splits = splits if len(splits) > 1 else (splits or ("",)) * len(self.questions)
        annotation_of: dict[str, Question] = {}
        for path in self.annotations:
            yield from _read_annotations(path, into=annotation_of)
        left = set(annotation_of)
        for path, split in zip(self.questions, splits, strict=True):
            yield from _read_questions(path, split=split, annotation_of=annotation_of, left=left, files=files)
        for id in (id for id in annotation_of if id in left):
            yield Skipped(where=f"annotation of question {id}", why="an annotation without a question")


def hold_out(
    entries: Iterable[Question | Skipped], *, fraction: float, seed: int
) -> Iterator[Question | Skipped]:
    """Move the questions of a random fraction of the training images to `val`, so that no image is in both.

    At least one image moves, and at least one stays. With `val` questions or a fraction of 0, nothing changes.

    Raises:
        InputError: a fraction outside [0, 1), or a single training image.
    """
    if not 0 <= fraction < 1:
        raise InputError(
            f"dev={fraction}: expected a fraction of the training images, from 0 to below 1, such as 0.05"
        )
    rows = list(entries)
    usable = [entry for entry in rows if isinstance(entry, Question)]
    images = dict.fromkeys(each.image_id for each in usable if each.split == "train")
    chosen: set[str] = set()
    if fraction and images and not any(each.split == "val" for each in usable):
        if len(images) == 1:
            raise InputError("a single training image, so none can move to val; give more images, or --dev 0")
        count = min(max(1, round(fraction * len(images))), len(images) - 1)
        chosen = choose(images, count, seed=seed)
    for entry in rows:
        if isinstance(entry, Question) and entry.split == "train" and entry.image_id in chosen:
            entry = replace(entry, split="val")
        yield entry


def _read_part(path: Path, key: str) -> dict[str, Any]:
    """Read a file with a list of entries under `key` (`questions` or `annotations`).

    Annotations with answers become a `Question` without split and words, or `Skipped` if they are invalid.

    Raises:
        InputError: a missing, truncated or malformed file.
    """
    data = read_json(path, what=_WHAT[key], entry=_compact)
    if not isinstance(data, dict) or not isinstance(data.get(key), list):
        other = next((name for name in _WHAT if isinstance(data, dict) and name in data), "")
        hint = f"; it holds {other}: give it as --{other}" if other else ""
        raise InputError(f"{path}: {FORM}: {_WHAT[key]}{hint}")
    return data


def _compact(entry: dict[str, Any]) -> Any:
    """Shrink an annotation while the file is parsed: VQA 2.0's JSON would take gigabytes of memory."""
    if entry.get("answers") is not None and "question_id" in entry:
        return _annotation(entry)
    if "answer" in entry and "question_id" not in entry:
        return entry.get("answer_id"), entry["answer"]
    return entry


def _annotation(entry: dict[str, Any]) -> Question | Skipped:
    """Return an annotation as a question without split and words, or a `Skipped` without its place in the file."""
    if why := misfit(entry, "an annotation", question_id=int, image_id=(int, str)):
        return Skipped(where="", why=why)
    id, answers = entry["question_id"], entry["answers"]
    where, optional = f", question {id}", ("question_type", "answer_type", "multiple_choice_answer")
    about = {name: entry[name] for name in optional if entry.get(name) is not None}
    if why := misfit(entry, "an annotation", answers=list, **dict.fromkeys(about, str)):
        return Skipped(where=where, why=why)
    if not all(isinstance(answer, tuple) for answer in answers):
        return Skipped(where=where, why=f"{FORM}: answers need to be a list of {{answer_id, answer}}")
    if all(type(number) is int for number, _ in answers):
        answers = sorted(answers, key=lambda pair: pair[0])
    if not answers:
        return Skipped(where=where, why="no usable answer")
    texts = tuple(sys.intern(answer) if isinstance(answer, str) else answer for _, answer in answers)
    return Question(
        id=str(id),
        split="",
        image_id=str(entry["image_id"]),
        question="",
        question_type=about.get("question_type", ""),
        answer_type=about.get("answer_type", ""),
        answers=texts,
        label=about.get("multiple_choice_answer", ""),
    )


def _read_annotations(path: Path, *, into: dict[str, Question]) -> Iterator[Skipped]:
    """Put the annotations of a file into a mapping from question ids; yield invalid ones."""
    for number, entry in enumerate(_read_part(path, "annotations")["annotations"]):
        where = f"{path.name}, annotation {number}"
        if isinstance(entry, Skipped):
            yield replace(entry, where=f"{where}{entry.where}")
        elif not isinstance(entry, Question):
            yield Skipped(where=where, why=f"{FORM}: no answers")
        elif entry.id in into:
            why = "a second annotation of a question; the first is kept"
            yield Skipped(where=f"{where}, question {entry.id}", why=why)
        else:
            into[entry.id] = entry


def _read_questions(
    path: Path,
    *,
    split: str,
    annotation_of: dict[str, Question],
    left: set[str],
    files: ImageFiles | None,
) -> Iterator[Question | Skipped]:
    """Yield the questions of a file with their answers, and remove their ids from `left`."""
    data = _read_part(path, "questions")
    subtype = _subtype(path, data, needed=not split)
    split, prefer = split or _SPLIT_OF[subtype], subtype.replace("-dev", "")
    entries = []
    for number, entry in enumerate(data["questions"]):
        if why := misfit(entry, "a question", question_id=int, image_id=(int, str), question=str):
            yield Skipped(where=f"{path.name}, question {number}", why=why, split=split)
        else:
            entries.append(entry)
    annotated = any(str(entry["question_id"]) in annotation_of for entry in entries)
    if entries and not annotated and split in ("train", "val"):
        raise InputError(
            f"{path}: none of its questions, which are to be {split}, has an annotation with answers; give their "
            "file, too: --annotations FILE"
        )
    for entry in Progress(entries, desc=split, unit="question"):
        id, image = str(entry["question_id"]), str(entry["image_id"])
        annotation, where = annotation_of.get(id), f"question {id}"
        image_path = files.find(image, prefer=prefer) if files else ""
        left.discard(id)
        if annotated and annotation is None:
            yield Skipped(where=where, why="a question without an annotation", split=split)
        elif annotation and annotation.image_id != image:
            yield Skipped(where=where, why="its annotation is about another image", split=split)
        elif files and image_path is None:
            why = f"no such image in {files.folder}"
            yield Skipped(where=f"{where}, image {image}", why=why, split=split)
        else:
            question = annotation or Question(id=id, split=split, image_id=image, question="")
            yield replace(question, split=split, question=entry["question"], path=image_path or "")


def _subtype(path: Path, data: dict[str, Any], *, needed: bool) -> str:
    """Return the official part of a file, by its `data_subtype` and name; the name tells test-dev2015 from test2015.

    Empty if the part is unclear and not `needed`.

    Raises:
        InputError: it is unclear and `needed`.
    """
    subtypes = {name for name in _SPLIT_OF if name == data.get("data_subtype") or name in path.name}
    if subtypes == {"test2015", "test-dev2015"}:
        return "test-dev2015"
    if len(subtypes) != 1 and needed:
        names = f"both {' and '.join(sorted(subtypes))}" if subtypes else "none"
        raise InputError(
            f"{path}: which split is this? Its data_subtype and its name say {names} of {', '.join(_SPLIT_OF)}; say it "
            f"by --split, one for each file of questions: {', '.join(SPLITS)}"
        )
    return subtypes.pop() if len(subtypes) == 1 else ""
