"""Questions and answers in the form of VQA 2.0."""

from __future__ import annotations

import json
from pathlib import Path

from vqa2_files import asked, told, write

from fuzz.cases import Kind
from fuzz.kinds.results import ALL, OUT, corpus_of, in_json
from polypool.pipelines.data.ingestion import ingest
from polypool.tasks.datasets.readers.vqa2 import Vqa2

_QUESTIONS, _TESTED, _ANNOTATIONS = "train2014_questions.json", "test2015_questions.json", "annotations.json"


def _make(folder: Path) -> None:
    numbers = [(10 * image + i, image) for image in range(4) for i in range(2)]
    write(folder, "train2014", "questions", [asked(*pair) for pair in numbers], name=_QUESTIONS)
    write(folder, "test2015", "questions", [asked(900 + i, 9) for i in range(2)], name=_TESTED)
    write(folder, "train2014", "annotations", [told(*pair) for pair in numbers], name=_ANNOTATIONS)
    (folder / "images").mkdir()
    for image in (*range(4), 9):
        (folder / "images" / f"COCO_train2014_{image:012d}.jpg").touch()


def _read(folder: Path) -> int:
    questions = (folder / _QUESTIONS, folder / _TESTED)
    reader = Vqa2(questions=questions, annotations=(folder / _ANNOTATIONS,), images=folder / "images")
    ingest(reader, out=OUT, tolerance=ALL)
    asked_in_all = sum(in_json(path.name, "questions") for path in questions)
    return corpus_of(entries=asked_in_all if _is_list(_ANNOTATIONS) else 0)


def _is_list(path: str) -> bool:
    return isinstance(json.loads(Path(path).read_bytes()).get("annotations"), list)


KINDS = [
    Kind(
        name="vqa2",
        make=_make,
        read=_read,
        damaged={_QUESTIONS: "json", _TESTED: "json", _ANNOTATIONS: "json"},
    )
]
