"""The results file that VQA's evaluation server takes: `[{"question_id": 1, "answer": "yes"}, ...]`.

It has one answer to every question of a split and to no other, or the server refuses it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from infra.errors import InputError

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


def _number(id: str) -> int:
    if not (id.isascii() and id.isdecimal()):
        raise InputError(f"the question id {id!r} is no whole number, which a results file needs")
    return int(id)


def _repeated(ids: Sequence[Any]) -> list[Any]:
    return [id for id, count in Counter(ids).items() if count > 1]


def _listed(ids: Sequence[Any]) -> str:
    """Return the ids in words: how many, and the first of them."""
    named = ", ".join(str(id) for id in ids[:_NAMED])
    word = "question" if len(ids) == 1 else "questions"
    return f"{len(ids):,} {word} ({named}{', ...' if len(ids) > _NAMED else ''})"
