"""The results file that VQA's evaluation server takes: `[{"question_id": 1, "answer": "yes"}, ...]`.

It has one answer to every question of a split and to no other, or the server refuses it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infra.errors import InputError
from infra.files import read_json

_WHAT = 'a results file, [{"question_id": 1, "answer": "yes"}, ...]'
_NAMED = 5  # ids in a message


def results_file(ids: Sequence[str], answers: Sequence[str]) -> bytes:
    """Return the content of a results file, in the order of the questions.

    Args:
        ids: of the questions; whole numbers.
        answers: one for each.

    Raises:
        InputError: an id that is not a number, an id twice, or not one answer for each.
    """
    if len(ids) != len(answers):
        raise InputError(f"{len(answers):,} answers to {len(ids):,} questions; expected one for each")
    rows = [{"question_id": _number(id), "answer": answer} for id, answer in zip(ids, answers, strict=True)]
    twice = _repeated([row["question_id"] for row in rows])
    if twice:
        raise InputError(f"{_listed(twice)} twice; a results file has one answer a question")
    return json.dumps(rows).encode()


def read_results(path: str | Path, *, ids: Sequence[str]) -> list[str]:
    """Check a results file against the questions of a split; return its answers in their order.

    Args:
        path: the file.
        ids: of all questions of the split.

    Raises:
        InputError: another form, an id twice, questions without an answer, or answers to questions that the split does
            not have; the message names them.
    """
    rows = read_json(path, what=_WHAT)
    if not isinstance(rows, list):
        raise InputError(f"{path}: expected {_WHAT}, found no list")
    for number, row in enumerate(rows):
        if not _is_row(row):
            raise InputError(
                f"{path}, entry {number}: expected a whole number as question_id and a string as answer, found {row!r}"
            )
    found = {str(row["question_id"]): row["answer"] for row in rows}
    known = set(ids)
    wrong = {
        "answered twice": _repeated([row["question_id"] for row in rows]),
        "without an answer": [id for id in ids if id not in found],
        "not of this split": [id for id in found if id not in known],
    }
    if any(wrong.values()):
        told = "; ".join(f"{_listed(of)} {why}" for why, of in wrong.items() if of)
        raise InputError(
            f"{path}: {told}. Expected one answer to each of the {len(ids):,} questions of the split"
        )
    return [found[id] for id in ids]


def _number(id: str) -> int:
    if not (id.isascii() and id.isdecimal()):
        raise InputError(f"the question id {id!r} is no whole number, which a results file needs")
    return int(id)


def _is_row(row: Any) -> bool:
    return (
        isinstance(row, dict) and type(row.get("question_id")) is int and isinstance(row.get("answer"), str)
    )


def _repeated(ids: Sequence[Any]) -> list[Any]:
    return [id for id, count in Counter(ids).items() if count > 1]


def _listed(ids: Sequence[Any]) -> str:
    """Return the ids in words: how many, and the first of them."""
    named = ", ".join(str(id) for id in ids[:_NAMED])
    word = "question" if len(ids) == 1 else "questions"
    return f"{len(ids):,} {word} ({named}{', ...' if len(ids) > _NAMED else ''})"
