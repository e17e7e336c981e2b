"""Synthetic files in the format of VQA 2.0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def question(number: int, image: int, **changes: Any) -> dict:
    return {"question_id": number, "image_id": image, "question": f"What is it {number}?"} | changes


def annotation(number: int, image: int, answers: list[Any] | None = None, **changes: Any) -> dict:
    """Return an annotation; its answers are listed in reverse order of their numbers."""
    given = ["cat"] * 7 + ["the cat", "dog", "dog"] if answers is None else answers
    numbered = [
        {"answer_id": place, "answer": answer, "answer_confidence": "yes"}
        for place, answer in enumerate(given, 1)
    ]
    return {
        "question_id": number,
        "image_id": image,
        "question_type": "what is",
        "answer_type": "other",
        "multiple_choice_answer": "cat",
        "answers": numbered[::-1],
    } | changes


def write_vqa2(folder: Path, subtype: str, key: str, entries: Any, *, name: str = "") -> Path:
    path = folder / (name or f"v2_OpenEnded_mscoco_{subtype}_{key}.json")
    path.write_text(json.dumps({"info": {}, "data_subtype": subtype, key: entries}))
    return path


def ingest_options(files: list[Path]) -> list[object]:
    questions = [path for path in files if "annotations" not in path.name]
    return ["--questions", *questions, "--annotations", *(path for path in files if path not in questions)]
