import json
import os
from pathlib import Path

import pytest

from polypool.infra.errors import InputError
from polypool.infra.store.findings import Tolerance
from polypool.tasks.datasets.corpus import Item, Question, write_corpus, write_questions


def item(id: str, split: str, *captions: str, path: str = "") -> Item:
    return Item(id=id, split=split, captions=captions or (f"caption of {id}",), path=path)


def flagged(folder: Path, items: list[Item], **options: object) -> dict[str, list[str]]:
    summary = write_corpus(folder / "out", items, source={}, **options)
    return {why: reason["examples"] for why, reason in summary.flagged["reasons"].items()}


def test_a_caption_of_two_splits(tmp_path):
    items = [
        item("1", "train", "a cat", "a dog", "twice", "twice"),
        item("2", "train", "twice"),
        item("3", "val", "a  cat", "a bird"),
        item("4", "test", "A cat", "x"),
        item("5", "test", "new", "a bird", "a dog"),
        item("6", "other", "x", "twice"),
    ]
    assert flagged(tmp_path, items) == {
        "the same caption in train and val": ["id 3, caption 1"],
        "the same caption in train and test": ["id 5, caption 3"],
        "the same caption in train and other": ["id 6, caption 2"],
        "the same caption in val and test": ["id 5, caption 2"],
    }
    listed = (tmp_path / "out" / "corpus.warnings.jsonl").read_text().splitlines()
    assert len(listed) == 4
    manifest = json.loads((tmp_path / "out" / "corpus.json").read_text())
    assert manifest["flagged"]["count"] == 4
    assert flagged(tmp_path, items[:2]) == {}
    assert not (tmp_path / "out" / "corpus.warnings.jsonl").exists()


def test_a_picture_of_two_splits_by_its_bytes(tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    long = bytes(19_999) + b"!"
    other_end, other_middle = long[:-1] + b"?", long[:10_000] + b"?" + long[10_001:]
    contents = {"a": long, "b": long, "c": other_end, "d": other_middle}
    contents |= {"e": b"short", "f": b"trohs", "g": b"short", "empty1": b"", "empty2": b""}
    for name, content in contents.items():
        (images / name).write_bytes(content)
    os.mkfifo(images / "pipe")  # never opened: that would wait for ever
    train = ("a", "c", "e", "empty1", "pipe", "gone")
    names = [*contents, "pipe", "gone"]
    items = [item(name, "train" if name in train else "test", path=name) for name in names]
    assert flagged(tmp_path, items, images=images) == {
        "the same picture in train and test": ["id b, as id a", "id g, as id e"]
    }
    with pytest.raises(InputError, match="2 x the same picture in train and test: id b, as id a") as caught:
        flagged(tmp_path, items, images=images, tolerance=Tolerance(strict=True))
    assert caught.value.exit_code == 2


def test_a_question_about_an_image_of_two_splits(tmp_path):
    def question(id: int, split: str, image: str) -> Question:
        return Question(id=str(id), split=split, image_id=image, question="what is it?", path=image)

    (tmp_path / "7.png").write_bytes(b"seven")
    (tmp_path / "8.png").write_bytes(b"seven")
    asked = [question(id, "train" if id < 3 else "test", "7.png") for id in (1, 2, 3, 4)]
    asked += [question(5, "test", "8.png")]
    asked += [question(6, split, "9.png") for split in ("test-dev", "test2015")]
    summary = write_questions(tmp_path / "out", asked, source={}, images=tmp_path)
    assert {why: reason["examples"] for why, reason in summary.flagged["reasons"].items()} == {
        "a question whose image is in train and test": ["question 3, image 7.png", "question 4, image 7.png"],
        "the same picture in train and test": ["id 8.png, as id 7.png"],
    }
