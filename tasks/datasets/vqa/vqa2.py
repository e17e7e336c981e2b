"""VQA 2.0's JSON: questions about photographs, and ten answers to each.

`v2_OpenEnded_mscoco_train2014_questions.json`: `{"data_subtype", "questions": [{"question_id", "image_id", "question"},
...]}`; `v2_mscoco_train2014_annotations.json`: `{"annotations": [{"question_id", "image_id", "question_type",
"answer_type", "multiple_choice_answer", "answers": [{"answer", "answer_id"}, ...]}, ...]}`. There are no annotations of
`test-dev2015` and `test2015`.

Models train on `train2014` and report on `val2014`; here a part of the training images, drawn by lot, is `val` and
chooses the epoch, and `val2014` is `test`.

Source: Goyal et al., "Making the V in VQA matter", CVPR 2017.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from infra.errors import InputError, unknown
from infra.files import identity
from infra.registry import READERS
from infra.store.findings import Skipped
from tasks.datasets.draws import draw
from tasks.datasets.images.image_files import ImageFiles
from tasks.datasets.published import VQA2
from tasks.datasets.questions import Question, QuestionSummary
from tasks.datasets.reader import Reader, Reading
from tasks.datasets.vqa.vqa2_files import FORM, Annotation, read_annotations, read_part

SPLITS = ("train", "val", "test", "test-dev", "test2015")
_SPLIT_OF = {"train2014": "train", "val2014": "test", "test-dev2015": "test-dev", "test2015": "test2015"}
_ANSWERS = "10"  # of each question


@READERS.register("vqa2")
@dataclass(frozen=True, kw_only=True)
class Vqa2(Reader):
    """Read questions and answers in the form of VQA 2.0.

    train2014 becomes train, of which a part is held out as val, to choose the epoch on; val2014 becomes test;
    test-dev2015 and test2015 have no answers, and are for results files.
    """

    questions: tuple[Path, ...]
    """v2_OpenEnded_mscoco_*_questions.json, one or several."""
    annotations: tuple[Path, ...] = ()
    """v2_mscoco_*_annotations.json of those that have some."""
    images: Path | None = None
    """Folder of the images; a question without one is left out."""
    dev: float = 0.05
    """The share of the training images whose questions become val."""
    seed: int = 0
    """Of the draw of these."""
    split: tuple[str, ...] = ()
    """train, val, test, test-dev or test2015, of each file of questions, where the files do not say it."""

    def read(self) -> Reading:
        """Return the questions of all files; see `read_vqa2` and `hold_out`."""
        files = identity(*self.questions, *self.annotations)
        entries = read_vqa2(
            self.questions, annotations=self.annotations, images=self.images, splits=self.split
        )
        return Reading(
            of="questions",
            rows=hold_out(entries, fraction=self.dev, seed=self.seed),
            source={
                "files": files,
                "dev": self.dev,
                "seed": self.seed,
                **({"split": self.split} if self.split else {}),
            },
            images=self.images or "",
            published=[VQA2],
        )

    def remarks(self, summary: QuestionSummary) -> Iterator[str]:
        """Say how many questions have more answers than the published ones, or fewer."""
        odd = {number: count for number, count in summary.answers.items() if number not in ("0", _ANSWERS)}
        if odd:
            numbers = ", ".join(f"{count:,} with {number}" for number, count in odd.items())
            yield (
                f"{sum(odd.values()):,} questions have not {_ANSWERS} answers ({numbers}); the accuracy of each is the "
                "mean over those there are"
            )


def read_vqa2(
    questions: Sequence[str | Path],
    *,
    annotations: Sequence[str | Path] = (),
    images: str | Path | None = None,
    splits: Sequence[str] = (),
) -> Iterator[Question | Skipped]:
    """Yield the questions of all files with their answers, and what cannot be used.

    Where a file has annotations, questions without one are skipped. An answer that is no string is skipped, and the
    question kept with the others.

    Args:
        questions: files of questions.
        annotations: files of annotations, in any order; which belongs to which question its id says.
        images: the folder of images, at any depth; a question whose image is not there is skipped.
        splits: of each file of questions, or one for all; by default what `data_subtype` or the file's name says.

    Raises:
        InputError: a file is missing, cut short or of another form; its split is not clear; there are no annotations of
            questions to be trained on; or no images in the folder.
    """
    files = ImageFiles(images) if images else None
    file_splits = _splits_of_files(splits, files=len(questions))
    annotation_of: dict[int, Annotation] = {}
    for path in map(Path, annotations):
        yield from read_annotations(path, into=annotation_of)
    question_ids: set[int] = set()
    for path, split in zip(map(Path, questions), file_splits, strict=True):
        yield from _read_questions(
            path, split=split, annotation_of=annotation_of, files=files, question_ids=question_ids
        )
    for id in (id for id in annotation_of if id not in question_ids):
        yield Skipped(where=f"annotation of question {id}", why="an annotation without a question")


def hold_out(
    entries: Iterable[Question | Skipped], *, fraction: float, seed: int = 0
) -> Iterator[Question | Skipped]:
    """Make the questions of a fraction of the training images `val`, so that no image is in both.

    Where there are `val` questions already, or `fraction` is 0, nothing changes.

    Args:
        entries: what `read_vqa2` yields.
        fraction: of the training images that have usable questions; at least one image is held out, and not all are.
        seed: of the draw.

    Raises:
        InputError: a fraction that is no number from 0 to below 1, or one training image only.
    """
    if not 0 <= fraction < 1:
        raise InputError(
            f"dev={fraction}: expected a fraction of the training images, from 0 to below 1, such as 0.05"
        )
    rows = list(entries)
    usable = [entry for entry in rows if isinstance(entry, Question)]
    images = dict.fromkeys(each.image_id for each in usable if each.split == "train")
    if not fraction or not images or any(each.split == "val" for each in usable):
        yield from rows
        return
    if len(images) < 2:
        raise InputError(
            "there is one training image only, so none can be held out; give more, or say --dev 0"
        )
    count = min(max(1, round(fraction * len(images))), len(images) - 1)
    chosen = draw(images, count, seed=seed)
    for entry in rows:
        if isinstance(entry, Question) and entry.split == "train" and entry.image_id in chosen:
            entry = replace(entry, split="val")
        yield entry


def _splits_of_files(splits: Sequence[str], *, files: int) -> list[str]:
    for split in splits:
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
    if len(splits) not in (0, 1, files):
        raise InputError(
            f"{len(splits)} splits for {files} files of questions: expected one for each, or one for all"
        )
    return list(splits) * files if len(splits) == 1 else list(splits) or [""] * files


def _read_questions(
    path: Path,
    *,
    split: str,
    annotation_of: dict[int, Annotation],
    files: ImageFiles | None,
    question_ids: set[int],
) -> Iterator[Question | Skipped]:
    data = read_part(path, "questions")
    subtype = _subtype(path, data, needed=not split)
    split, prefer = split or _SPLIT_OF[subtype], subtype.replace("-dev", "")
    ids = {entry["question_id"] for entry in data["questions"] if _is_question(entry)}
    annotated = not ids.isdisjoint(annotation_of)
    if ids and not annotated and split in ("train", "val"):
        raise InputError(
            f"{path}: none of its questions, which are to be {split}, has an annotation; give their file, too: "
            "--annotations FILE"
        )
    for number, entry in enumerate(tqdm(data["questions"], desc=split, unit="question")):
        if not _is_question(entry):
            where = f"{path.name}, question {number}"
            why = f"{FORM}: a question needs question_id, image_id and question"
            yield Skipped(where=where, why=why, split=split)
            continue
        question_ids.add(entry["question_id"])
        image, annotation = str(entry["image_id"]), annotation_of.get(entry["question_id"])
        where = f"question {entry['question_id']}"
        image_path = files.find(image, prefer=prefer) if files else ""
        if annotated and annotation is None:
            yield Skipped(where=where, why="a question without an annotation", split=split)
        elif annotation and annotation.image_id != image:
            yield Skipped(where=where, why="its annotation is about another image", split=split)
        elif image_path is None:
            why = f"no such image in {files.folder}"
            yield Skipped(where=f"{where}, image {image}", why=why, split=split)
        else:
            for bad in annotation.wrong if annotation else ():
                yield Skipped(where=f"{where}, answer {bad}", why="an answer that is not a string", part=True)
            yield Question(
                id=str(entry["question_id"]),
                split=split,
                image_id=image,
                question=entry["question"],
                path=image_path,
                **(annotation.fields if annotation else {}),
            )


def _subtype(path: Path, data: dict[str, Any], *, needed: bool) -> str:
    """Return which of the official parts a file is; where they differ, its name may narrow test2015 to test-dev2015."""
    subtypes = (
        {data.get("data_subtype")} & _SPLIT_OF.keys() if isinstance(data.get("data_subtype"), str) else set()
    )
    subtypes |= {name for name in _SPLIT_OF if name in path.name}
    if subtypes == {"test2015", "test-dev2015"}:
        return "test-dev2015"
    if len(subtypes) != 1 and needed:
        names = f"both {' and '.join(sorted(subtypes))}" if subtypes else "none"
        raise InputError(
            f"{path}: which split is this? Its data_subtype and its name say {names} of {', '.join(_SPLIT_OF)}; say it "
            f"by --split, one for each file of questions: {', '.join(SPLITS)}"
        )
    return subtypes.pop() if len(subtypes) == 1 else ""


def _is_question(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and type(entry.get("question_id")) is int
        and type(entry.get("image_id")) in (int, str)
        and isinstance(entry.get("question"), str)
    )
