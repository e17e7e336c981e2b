from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from places import ROOT

from polypool.infra.errors import InputError
from polypool.infra.store import StoreWriter
from polypool.infra.store.findings import Tolerance
from polypool.pipelines.commands import extract as verb
from polypool.pipelines.data.extraction import job
from polypool.pipelines.data.extraction.workers import Batch
from polypool.tasks.datasets.corpus import Item, write_corpus
from polypool.tasks.datasets.open_corpora import open_corpus
from polypool.tasks.datasets.questions import Question, write_questions


def test_the_driver_holds_nothing_of_an_image_that_is_listed(tmp_path, monkeypatch):
    captions = tuple(f"caption {number} of some words about a picture" for number in range(5))
    items = (
        Item(id=f"COCO_train2014_{n:012d}", split="train", captions=captions, path=f"{n}.jpg")
        for n in range(9_000)
    )
    write_corpus(tmp_path, items, source={"made": "by a test"}, images=tmp_path)
    held, names = [], ("infra", "pipelines", "tasks")
    ours = [tracemalloc.Filter(True, f"{ROOT}/{name}/*") for name in names]

    def none_come(batches: Iterable[Batch], **_: object) -> Iterator[dict[str, Any]]:
        count = 0
        for batch in batches:
            count += len(batch["ids"])
            if count % 4096 == 0:  # as many as are read from the corpus at a time
                found = tracemalloc.take_snapshot().filter_traces(ours)  # other threads take memory, too
                held.append(sum(each.size for each in found.statistics("filename")))
        assert count == 9_000
        yield from ()

    def writer(*arguments: Any, **options: Any) -> StoreWriter:
        tracemalloc.start()  # when all is loaded, and nothing listed
        return StoreWriter(*arguments, **options, shard_bytes=1 << 18)

    monkeypatch.setattr(job, "StoreWriter", writer)
    monkeypatch.setattr(job, "stream", none_come)
    monkeypatch.setattr(job, "ray_session", nullcontext)
    try:
        with pytest.raises(InputError, match="no features to store"):
            verb.extract(corpus=tmp_path, out=tmp_path / "store")
    finally:
        tracemalloc.stop()
    assert len(held) == 2
    assert max(held) < held[0] + 60_000, (
        "a set of ids takes 30 bytes of each and more, ids and paths as objects 200"
    )


def test_an_image_is_listed_once_and_in_order_whatever_splits_are_named(tmp_path):
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
        found = job._listed(opened, dict.fromkeys(splits, limit), texts=False)
        return [(item.id, item.split) for item in found]

    each = [("1", "val"), ("3", "val"), ("5", "val"), ("0", "train"), ("2", "train"), ("4", "train")]
    assert listed(corpus, "val", "train") == listed(corpus, "val", "train", "val") == each
    assert listed(corpus, "val", "train", limit=1) == [each[0], each[3]]
    of_questions = [("2", "train"), ("1", "train"), ("0", "train"), ("3", "val")]
    assert listed(questions, "train", "val", "train") == of_questions
