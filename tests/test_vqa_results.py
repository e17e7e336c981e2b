from __future__ import annotations

import json
from pathlib import Path

import pytest

from infra.errors import InputError
from tasks.vqa_results import read_results, results_file


def test_a_file_goes_there_and_back(tmp_path: Path) -> None:
    content = results_file(["7", "3000001"], ["yes", "café"])
    assert json.loads(content) == [
        {"question_id": 7, "answer": "yes"},
        {"question_id": 3000001, "answer": "café"},
    ]
    path = tmp_path / "results.json"
    path.write_bytes(content)
    assert read_results(path, ids=["3000001", "7"]) == ["café", "yes"]


def test_what_is_not_written() -> None:
    with pytest.raises(InputError, match="the question id 'x7' is no whole number"):
        results_file(["x7"], ["yes"])
    with pytest.raises(InputError, match=r"1 question \(7\) twice"):
        results_file(["7", "8", "7"], ["yes"] * 3)
    with pytest.raises(InputError, match="1 answers to 2 questions"):
        results_file(["7", "8"], ["yes"])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({}, "found no list"),
        (["x"], "entry 0: expected a whole number"),
        (
            [{"question_id": 1, "answer": "a"}, {"question_id": "2", "answer": "a"}],
            "entry 1: expected a whole number",
        ),
        ([{"question_id": True, "answer": "a"}], "entry 0"),
        ([{"question_id": 1, "answer": 2}], "a string as answer"),
        ([{"question_id": 1, "answer": "a"}], r"2 questions \(2, 3\) without an answer"),
        (
            [{"question_id": n, "answer": "a"} for n in range(1, 11)],
            r"7 questions \(4, 5, 6, 7, 8, \.\.\.\) not of this",
        ),
        ([{"question_id": n, "answer": "a"} for n in (1, 2, 2, 3)], r"1 question \(2\) answered twice"),
    ],
)
def test_what_the_checker_names(tmp_path: Path, rows: object, message: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(rows))
    with pytest.raises(InputError, match=message):
        read_results(path, ids=["1", "2", "3"])


def test_a_file_that_is_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text('[{"question_id": 1')
    with pytest.raises(InputError, match="not valid JSON"):
        read_results(path, ids=["1"])
