import json
from collections.abc import Iterator

import pytest

from polypool.infra.errors import InputError
from polypool.tasks.datasets.corpus import Corpus, Item, Skipped, Tolerance, write_corpus


def item(id: str, *captions: str, split: str = "train", path: str = "") -> Item:
    return Item(id=id, split=split, captions=captions or (f"a picture of {id}",), path=path)


def test_items_come_back_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(Corpus, "batch", 40)
    given = [
        item(str(i), f"one {i}", f"two {i}", split="val" if i % 3 else "train", path=f"{i}.jpg")
        for i in range(90)
    ]
    summary = write_corpus(tmp_path, given, source={"reader": "test"}, images=tmp_path)
    corpus = Corpus.open(tmp_path)
    assert summary.splits == corpus.splits == {"train": 30, "val": 60}
    assert summary.captions == 180
    assert corpus.items("val") == [it for it in given if it.split == "val"]
    assert corpus.items("train") == [it for it in given if it.split == "train"]
    assert corpus.ids.to_pylist() == [it.id for it in given]
    assert corpus.image_path(given[7]) == tmp_path / "7.jpg"
    assert corpus.manifest.source == {"reader": "test"}


def test_what_cannot_be_used_is_skipped_counted_and_listed(tmp_path):
    given = [
        item("a", "good", "   ", "also\n good"),
        Skipped(where="line 2", why="torn"),
        item("b", "", " "),
        item("a", "again"),
        item("c", "half \ud83d a pair", "ünï 漢字 \U0001f600"),
        item("", "no id"),
    ]
    summary = write_corpus(tmp_path, given, source={}, tolerance=Tolerance(allow_skipped=True))
    corpus = Corpus.open(tmp_path)
    kept = {it.id: it.captions for it in corpus.items("train")}
    assert kept == {"a": ("good", "also good"), "c": ("ünï 漢字 \U0001f600",)}
    once = ("torn", "no captions", "duplicate id; the first is kept", "a caption that is not valid UTF-8")
    counts = {why: reason["count"] for why, reason in summary.skipped["reasons"].items()}
    assert counts == {"a caption that is empty": 3, **dict.fromkeys(once, 1), "an id that is empty": 1}
    assert corpus.manifest.skipped == summary.skipped
    listed = [json.loads(line) for line in (tmp_path / "corpus.skipped.jsonl").read_text().splitlines()]
    assert len(listed) == summary.skipped["count"] == 8
    assert {"where": "id a, caption 2", "why": "a caption that is empty"} in listed


def test_a_failure_half_way_leaves_the_old_corpus(tmp_path, monkeypatch):
    monkeypatch.setattr(Corpus, "batch", 4)
    write_corpus(tmp_path, [item("a")], source={})

    def broken() -> Iterator[Item]:
        yield from (item(str(i)) for i in range(5))
        raise InputError("the reader fails")

    with pytest.raises(InputError, match="the reader fails"):
        write_corpus(tmp_path, broken(), source={})
    assert [it.id for it in Corpus.open(tmp_path).items("train")] == ["a"]
    write_corpus(tmp_path, [item("b")], source={})
    assert [it.id for it in Corpus.open(tmp_path).items("train")] == ["b"]
