from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from polypool.infra.errors import InputError
from polypool.infra.store.findings import Skipped, Tolerance
from polypool.tasks.datasets.corpus import (
    Item,
    Question,
    QuestionCorpus,
    open_corpus,
    write_corpus,
    write_questions,
)


def question(number: int, image: int | str, split: str = "train", **changes: object) -> Question:
    given = {
        "id": str(number),
        "split": split,
        "image_id": str(image),
        "question": f"what is {number}",
        "path": f"{image}.png",
        "question_type": "what is",
        "answer_type": "other",
        "answers": tuple(f"a{i % 3}" for i in range(10)),
        "label": "a0",
    }
    return Question(**(given | changes))


def blind(number: int, image: int, split: str) -> Question:
    return Question(id=str(number), split=split, image_id=str(image), question="is it?", path=f"{image}.png")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """Fifteen questions about six images; the test splits share one of them."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "images").mkdir()
    rng = np.random.default_rng(0)
    for image in range(6):
        pixels = rng.integers(0, 256, (24, 30, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{image}.png")
    asked = [question(i, i % 3) for i in range(9)] + [question(9 + i, 3, "val") for i in range(3)]
    asked += [blind(50, 4, "test-dev"), blind(50, 4, "test2015"), blind(51, 5, "test2015")]
    write_questions(folder, asked, source={"made": "by a test"}, images=folder / "images")
    return folder


def test_questions_come_back_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(QuestionCorpus, "batch", 100)
    given = [question(i, i // 3, "val" if i % 3 else "train") for i in range(400)]
    summary = write_questions(tmp_path, given, source={"reader": "test"}, images=tmp_path)
    opened = QuestionCorpus.open(tmp_path)
    assert summary.splits == opened.splits == {"train": 134, "val": 266}
    assert summary.images == {"train": 134, "val": 133}
    assert summary.answers == {"10": 400}
    for split in ("train", "val"):
        assert opened.questions(split) == [each for each in given if each.split == split]
    assert opened.image_path(given[7]) == tmp_path / "2.png"
    names = ["questions.arrow", "questions.json", "questions.warnings.jsonl"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    with pa.ipc.open_file(tmp_path / "questions.arrow") as file:
        first = file.read_all().slice(0, 1).to_pylist()[0]
    assert first["answers"] == ["a0", "a1", "a2"] * 3 + ["a0"]
    assert first["path"] == "0.png"


def test_one_id_may_be_in_both_test_splits_but_not_twice(tmp_path):
    given = [question(1, 1), question(1, 1, "val")]
    given += [blind(2, 2, split) for split in ("test2015", "test-dev", "test-dev")]
    given += [Skipped(where="line 2", why="torn")]
    summary = write_questions(tmp_path, given, source={}, tolerance=Tolerance(allow_skipped=True))
    assert summary.splits == {"train": 1, "test2015": 1, "test-dev": 1}
    reasons = {why: reason["count"] for why, reason in summary.skipped["reasons"].items()}
    assert reasons == {"duplicate id; the first is kept": 2, "torn": 1}
    assert len((tmp_path / "questions.skipped.jsonl").read_text().splitlines()) == 3


def test_images_come_once(corpus):
    opened = QuestionCorpus.open(corpus)
    found = [(image.id, image.split) for image in opened.items("train")]
    assert found == [(str(i), "train") for i in range(3)]
    assert [image.id for image in opened.items("test2015")] == ["4", "5"]
    assert opened.ids.to_pylist() == [str(i) for i in range(6)]


def test_one_door_to_either_corpus(corpus, tmp_path):
    assert isinstance(open_corpus(corpus), QuestionCorpus)
    items = [Item(id="1", split="train", captions=("a",))]
    write_corpus(tmp_path, items, source={})
    assert open_corpus(tmp_path).items("train") == items
    with pytest.raises(InputError, match=r"corpus\.json: no such file"):
        open_corpus(tmp_path / "none")
    write_questions(tmp_path, [question(1, 1)], source={})
    with pytest.raises(InputError, match=r"has both corpus\.json and questions\.json"):
        open_corpus(tmp_path)
