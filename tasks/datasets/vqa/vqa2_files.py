"""The JSON files of VQA 2.0: their entries, and what annotations say, made small while a file is read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from infra.errors import InputError
from infra.files import read_json
from infra.store.findings import Skipped

_WHAT = {
    "questions": 'VQA\'s questions, {"questions": [{"question_id", "image_id", "question"}, ...]}',
    "annotations": 'VQA\'s annotations, {"annotations": [{"question_id", "answers", ...}, ...]}',
}
FORM = "not of the expected form"


@dataclass(frozen=True, kw_only=True, slots=True)
class Annotation:
    """What is said about one question.

    Args:
        question_id: which.
        image_id: of its image.
        fields: of the `Question`: `question_type`, `answer_type`, `label` and `answers`.
        wrong: the numbers of answers that are no strings.
    """

    question_id: int
    image_id: str
    fields: dict[str, Any]
    wrong: tuple[int, ...]


def read_annotations(path: Path, *, into: dict[int, Annotation]) -> Iterator[Skipped]:
    """Put the annotations of a file into a mapping from question ids; yield what cannot be used.

    Raises:
        InputError: the file is missing, cut short or of another form.
    """
    for number, entry in enumerate(read_part(path, "annotations")["annotations"]):
        if isinstance(entry, Skipped):
            yield replace(entry, where=f"{path.name}, annotation {number}{entry.where}")
        elif not isinstance(entry, Annotation):
            yield Skipped(where=f"{path.name}, annotation {number}", why=f"{FORM}: no answers")
        elif entry.question_id in into:
            where = f"{path.name}, annotation {number}, question {entry.question_id}"
            yield Skipped(where=where, why="a second annotation of a question; the first is kept")
        else:
            into[entry.question_id] = entry


def read_part(path: Path, key: str) -> dict[str, Any]:
    """Return what a file holds, of which `key` (`questions` or `annotations`) is a list of entries.

    Annotations come as `Annotation`, or as `Skipped` where something is wrong with them.

    Raises:
        InputError: the file is missing, cut short or of another form.
    """
    data = read_json(path, what=_WHAT[key], object_hook=_compact)
    if not isinstance(data, dict) or not isinstance(data.get(key), list):
        other = next((name for name in _WHAT if isinstance(data, dict) and name in data), "")
        hint = f"; it holds {other}: give it as --{other}" if other else ""
        raise InputError(f"{path}: {FORM}: {_WHAT[key]}{hint}")
    return data


def _compact(entry: dict[str, Any]) -> Any:
    """Make an annotation small while the file is read: as JSON, those of VQA 2.0 take gigabytes of memory."""
    if "answers" in entry and "question_id" in entry:
        return _annotation(entry)
    if "answer" in entry and "question_id" not in entry:
        return entry.get("answer_id"), entry["answer"]
    return entry


def _annotation(entry: dict[str, Any]) -> Annotation | Skipped:
    """Return what an entry says, or, without its place in the file, what is wrong with it."""
    id, image = entry["question_id"], entry.get("image_id")
    if type(id) is not int or type(image) not in (int, str):
        return Skipped(where="", why=f"{FORM}: an annotation needs question_id and image_id")
    answers, label = entry["answers"], entry.get("multiple_choice_answer")
    kinds = {name: entry.get(name) for name in ("question_type", "answer_type")}
    where = f", question {id}"
    if not isinstance(answers, list) or not all(isinstance(answer, tuple) for answer in answers):
        return Skipped(where=where, why=f"{FORM}: answers need to be a list of {{answer_id, answer}}")
    if not all(isinstance(text, str) for text in (label, *kinds.values())):
        return Skipped(
            where=where, why="a question_type, answer_type or multiple_choice_answer that is not a string"
        )
    if all(type(place) is int for place, _ in answers):
        answers = sorted(answers, key=lambda pair: pair[0])
    strings = tuple(sys.intern(answer) for _, answer in answers if isinstance(answer, str))
    if not strings:
        return Skipped(where=where, why="no usable answer")
    wrong = tuple(number for number, (_, answer) in enumerate(answers, 1) if not isinstance(answer, str))
    values = kinds | {"answers": strings, "label": label}
    return Annotation(question_id=id, image_id=str(image), fields=values, wrong=wrong)
