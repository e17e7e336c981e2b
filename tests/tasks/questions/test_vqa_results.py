from __future__ import annotations

import json

import pytest

from infra.errors import InputError
from tasks.questions.results import results_file


def test_a_file_has_the_answers_in_the_order_of_the_questions() -> None:
    content = results_file(["7", "3000001"], ["yes", "café"])
    assert json.loads(content) == [
        {"question_id": 7, "answer": "yes"},
        {"question_id": 3000001, "answer": "café"},
    ]


def test_what_is_not_written() -> None:
    with pytest.raises(InputError, match="the question id 'x7' is no whole number"):
        results_file(["x7"], ["yes"])
    with pytest.raises(InputError, match=r"1 question \(7\) twice"):
        results_file(["7", "8", "7"], ["yes"] * 3)
    with pytest.raises(InputError, match="1 answers to 2 questions"):
        results_file(["7", "8"], ["yes"])
