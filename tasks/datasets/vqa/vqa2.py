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
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from infra.errors import InputError, unknown
from infra.store.skipped import Skipped
from tasks.datasets.draws import draw
from tasks.datasets.images.image_files import ImageFiles
from tasks.datasets.questions import Question
from tasks.datasets.vqa.vqa2_files import FORM, Annotation, read_annotations, read_part

SPLITS = ("train", "val", "test", "test-dev", "test2015")
_SPLIT_OF = {"train2014": "train", "val2014": "test", "test-dev2015": "test-dev", "test2015": "test2015"}


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
    given = _given_splits(splits, files=len(questions))
    told: dict[int, Annotation] = {}
    for path in map(Path, annotations):
        yield from read_annotations(path, into=told)
    asked: set[int] = set()
    for path, split in zip(map(Path, questions), given, strict=True):
        yield from _read_questions(path, split=split, told=told, files=files, asked=asked)
    for id in (id for id in told if id not in asked):
        yield Skipped(where=f"annotation of question {id}", why="an annotation without a question")


def hold_out(
    entries: Iterable[Question | Skipped], *, share: float, seed: int = 0
) -> Iterator[Question | Skipped]:
    """Make the questions of a share of the training images `val`, so that no image is in both.

    Where there are `val` questions already, or `share` is 0, nothing changes.

    Args:
        entries: what `read_vqa2` yields.
        share: of the training images that have usable questions; at least one image is held out, and not all are.
        seed: of the draw.

    Raises:
        InputError: a share that is no number from 0 to below 1, or one training image only.
    """
    if not 0 <= share < 1:
        raise InputError(
            f"dev={share}: expected a share of the training images, from 0 to below 1, such as 0.05"
        )
    held = list(entries)
    usable = [entry for entry in held if isinstance(entry, Question)]
    images = dict.fromkeys(each.image_id for each in usable if each.split == "train")
    if not share or not images or any(each.split == "val" for each in usable):
        yield from held
        return
    if len(images) < 2:
        raise InputError(
            "there is one training image only, so none can be held out; give more, or say --dev 0"
        )
    count = min(max(1, round(share * len(images))), len(images) - 1)
    chosen = draw(images, count, seed=seed)
    for entry in held:
        if isinstance(entry, Question) and entry.split == "train" and entry.image_id in chosen:
            entry = replace(entry, split="val")
        yield entry


def _given_splits(splits: Sequence[str], *, files: int) -> list[str]:
    for split in splits:
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
    if len(splits) not in (0, 1, files):
        raise InputError(
            f"{len(splits)} splits for {files} files of questions: expected one for each, or one for all"
        )
    return list(splits) * files if len(splits) == 1 else list(splits) or [""] * files


def _read_questions(
    path: Path, *, split: str, told: dict[int, Annotation], files: ImageFiles | None, asked: set[int]
) -> Iterator[Question | Skipped]:
    data = read_part(path, "questions")
    subtype = _subtype(path, data, needed=not split)
    split, prefer = split or _SPLIT_OF[subtype], subtype.replace("-dev", "")
    ids = {entry["question_id"] for entry in data["questions"] if _is_question(entry)}
    annotated = not ids.isdisjoint(told)
    if ids and not annotated and split in ("train", "val"):
        raise InputError(
            f"{path}: none of its questions, which are to be {split}, has an annotation; give their file, too: "
            "--annotations FILE"
        )
    for number, entry in enumerate(tqdm(data["questions"], desc=split, unit="question")):
        if not _is_question(entry):
            where = f"{path.name}, question {number}"
            yield Skipped(where=where, why=f"{FORM}: a question needs question_id, image_id and question")
            continue
        asked.add(entry["question_id"])
        image, said = str(entry["image_id"]), told.get(entry["question_id"])
        where = f"question {entry['question_id']}"
        found = files.find(image, prefer=prefer) if files else ""
        if annotated and said is None:
            yield Skipped(where=where, why="a question without an annotation")
        elif said and said.image_id != image:
            yield Skipped(where=where, why="its annotation is about another image")
        elif found is None:
            yield Skipped(where=f"{where}, image {image}", why=f"no such image in {files.folder}")
        else:
            for bad in said.wrong if said else ():
                yield Skipped(where=f"{where}, answer {bad}", why="an answer that is not a string")
            yield Question(
                id=str(entry["question_id"]),
                split=split,
                image_id=image,
                question=entry["question"],
                path=found,
                **(said.fields if said else {}),
            )


def _subtype(path: Path, data: dict[str, Any], *, needed: bool) -> str:
    """Return which of the official parts a file is; where they differ, its name may narrow test2015 to test-dev2015."""
    said = (
        {data.get("data_subtype")} & _SPLIT_OF.keys() if isinstance(data.get("data_subtype"), str) else set()
    )
    said |= {name for name in _SPLIT_OF if name in path.name}
    if said == {"test2015", "test-dev2015"}:
        return "test-dev2015"
    if len(said) != 1 and needed:
        found = f"both {' and '.join(sorted(said))}" if said else "none"
        raise InputError(
            f"{path}: which split is this? Its data_subtype and its name say {found} of {', '.join(_SPLIT_OF)}; say it "
            f"by --split, one for each file of questions: {', '.join(SPLITS)}"
        )
    return said.pop() if len(said) == 1 else ""


def _is_question(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and type(entry.get("question_id")) is int
        and type(entry.get("image_id")) in (int, str)
        and isinstance(entry.get("question"), str)
    )
