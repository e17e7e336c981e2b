from __future__ import annotations

import pytest

from polypool.infra.errors import InputError
from polypool.infra.store.findings import Tolerance
from polypool.pipelines.data import extraction
from polypool.tasks.datasets.corpus import Item, Question, open_corpus, write_corpus, write_questions


def test_images_are_listed_once_and_in_order(tmp_path):
    splits, loose = ("train", "val"), Tolerance(allow_skipped=True)
    items = [Item(id=f"{n}", split=splits[n % 2], captions=("a",), path=f"{n}.jpg") for n in range(6)]
    write_corpus(tmp_path / "corpus", items, source={})
    asked = [
        Question(id=f"{split}{at}", split=split, image_id=f"{n}", question="?", path=f"{n}.jpg")
        for split, numbers in (("train", (2, 1, 2, 0)), ("val", (1, 3)))
        for at, n in enumerate(numbers)
    ]
    write_questions(tmp_path / "questions", asked, source={}, tolerance=loose)
    corpus, questions = (open_corpus(tmp_path / name) for name in ("corpus", "questions"))
    assert [*corpus.paths("val")] == [(f"{n}", f"{n}.jpg", "") for n in (1, 3, 5)]
    assert [*questions.paths("train")] == [(n, f"{n}.jpg", "") for n in "210"]
    assert [(each.id, each.split) for each in questions.items("val")] == [("1", "val"), ("3", "val")]
    for opened in (corpus, questions):
        with pytest.raises(InputError, match="in the split 'dev'; there are"):
            opened.check_split("dev")

    def listed(opened: object, *splits: str, limit: int | None = None) -> list[tuple[str, str]]:
        found = extraction._listed(opened, dict.fromkeys(splits, limit), texts=False)
        return [(item.id, item.split) for item in found]

    each = [("1", "val"), ("3", "val"), ("5", "val"), ("0", "train"), ("2", "train"), ("4", "train")]
    assert listed(corpus, "val", "train") == listed(corpus, "val", "train", "val") == each
    assert listed(corpus, "val", "train", limit=1) == [each[0], each[3]]
    of_questions = [("2", "train"), ("1", "train"), ("0", "train"), ("3", "val")]
    assert listed(questions, "train", "val", "train") == of_questions
