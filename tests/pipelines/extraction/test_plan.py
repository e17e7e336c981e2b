"""What is sent to extractors: which batches travel together, and that nobody holds all of them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

from infra.errors import InputError
from infra.store import StoreWriter
from infra.store.findings import Tolerance
from pipelines import extract as verb
from pipelines.extraction import plan as module
from pipelines.extraction.plan import Batch, Plan, Planned
from tasks.datasets.corpus import Item, write_corpus
from tasks.datasets.open_corpus import open_corpus
from tasks.datasets.questions import Question, write_questions


def spans(count: int, *, most: int, workers: int) -> list[tuple[int, int]]:
    return Plan(chunks=(), count=count).spans(most=most, workers=workers)


@pytest.mark.parametrize("count", [1, 2, 7, 33, 1000])
@pytest.mark.parametrize("most", [1, 4, 8])
@pytest.mark.parametrize("workers", [1, 2, 16])
def test_every_batch_travels_once_and_in_order(count: int, most: int, workers: int) -> None:
    found = spans(count, most=most, workers=workers)
    assert [number for first, end in found for number in range(first, end)] == [*range(count)]
    sizes = [end - first for first, end in found]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) <= most
    last = sizes[-workers:]
    assert last == [1] * len(last), "each worker ends with a single one"


def test_so_many_batches_are_few_tasks() -> None:
    assert spans(30, most=8, workers=2)[:4] == [(0, 7), (7, 12), (12, 16), (16, 19)]
    million = spans(62_500, most=4, workers=8)
    assert million[0] == (0, 31)
    assert len(million) < 2200


@dataclass
class Noting:
    """An extractor that notes what it is called with."""

    one_by_one: bool
    calls: list[list[str]] = field(default_factory=list)

    def __call__(self, batch: Batch) -> list[dict[str, Any]]:
        self.calls.append(batch["ids"])
        return [{"id": id, "path": path} for id, path in zip(batch["ids"], batch["paths"], strict=True)]


class Held(Plan):
    """A plan in this process."""

    def batches(self, first: int, end: int) -> Iterator[Batch]:
        for number in range(first, end):
            yield {"ids": [f"{number}a", f"{number}b"], "paths": [f"/{number}a", f"/{number}b"]}


def test_images_come_in_their_batches_and_videos_all_at_once() -> None:
    for one_by_one, calls in ((False, [["3a", "3b"], ["4a", "4b"]]), (True, [["3a", "3b", "4a", "4b"]])):
        worker = Planned(extractor=Noting, options={"one_by_one": one_by_one}, plan=Held(chunks=(), count=9))
        rows = [*worker({"first": 3, "end": 5})]
        assert worker._extractor.calls == calls
        assert rows == [{"id": id, "path": f"/{id}"} for id in ("3a", "3b", "4a", "4b")]


def test_batches_lie_in_tables_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.put", lambda table: table)
    monkeypatch.setattr("ray.get", lambda table: table)
    monkeypatch.setattr(module, "CHUNK", 3)
    made = [{"ids": [f"é{n}", ""][: 1 + n % 2], "texts": ["x" * n, "y"][: 1 + n % 2]} for n in range(8)]
    plan = Plan.of(iter(made))
    assert (plan.count, [len(chunk) for chunk in plan.chunks]) == (8, [3, 3, 2])
    for first in range(9):
        for end in range(first, 9):
            assert [*plan.batches(first, end)] == made[first:end]


def test_the_driver_holds_nothing_of_an_image_that_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captions = tuple(f"caption {number} of some words about a picture" for number in range(5))
    items = (
        Item(id=f"COCO_train2014_{n:012d}", split="train", captions=captions, path=f"{n}.jpg")
        for n in range(20_000)
    )
    write_corpus(tmp_path, items, source={"made": "by a test"}, images=tmp_path)
    held, ours = (
        [],
        [tracemalloc.Filter(True, f"{ROOT}/{name}/*") for name in ("infra", "pipelines", "tasks")],
    )

    def none_come(batches: Iterable[Batch], **_: object) -> Iterator[dict[str, Any]]:
        count = 0
        for batch in batches:
            count += len(batch["ids"])
            if count % 4096 == 0:  # as many as are read from the corpus at a time
                found = tracemalloc.take_snapshot().filter_traces(ours)  # other threads take memory, too
                held.append(sum(each.size for each in found.statistics("filename")))
        assert count == 20_000
        yield from ()

    def writer(*arguments: Any, **options: Any) -> StoreWriter:
        tracemalloc.start()  # when all is loaded, and nothing listed
        return StoreWriter(*arguments, **options, shard_bytes=1 << 18)

    monkeypatch.setattr(verb, "StoreWriter", writer)
    monkeypatch.setattr(verb, "stream", none_come)
    monkeypatch.setattr(verb, "ray_session", nullcontext)
    try:
        with pytest.raises(InputError, match="no features to store"):
            verb.extract(corpus=tmp_path, out=tmp_path / "store")
    finally:
        tracemalloc.stop()
    assert max(held) < held[0] + 100_000, (
        "a set of ids takes 30 bytes of each and more, ids and paths as objects 200"
    )


def test_files_of_a_split_are_listed_once_and_in_order(tmp_path: Path) -> None:
    items = [
        Item(id=f"{n}", split=("train", "val")[n % 2], captions=("a",), path=f"{n}.jpg") for n in range(9)
    ]
    write_corpus(tmp_path / "corpus", items, source={})
    corpus = open_corpus(tmp_path / "corpus")
    assert [*corpus.paths("val")] == [(f"{n}", f"{n}.jpg") for n in (1, 3, 5, 7)]
    asked = [
        Question(
            id=f"q{n}",
            split="test" if n > 5 else "train",
            image_id=f"{n % 3}",
            question="?",
            path=f"{n % 3}.jpg",
        )
        for n in (5, 4, 3, 2, 1, 6)
    ]
    write_questions(tmp_path / "questions", asked, source={})
    questions = open_corpus(tmp_path / "questions")
    assert [*questions.paths("train")] == [("2", "2.jpg"), ("1", "1.jpg"), ("0", "0.jpg")]
    assert [(each.id, each.split) for each in questions.items("test")] == [("0", "test")]
    for opened in (corpus, questions):
        with pytest.raises(InputError, match="in the split 'dev'; there are"):
            opened.check_split("dev")


def test_an_image_is_listed_once_whatever_splits_are_named(tmp_path: Path) -> None:
    items = [
        Item(id=f"{n}", split=("train", "val")[n % 2], captions=("a",), path=f"{n}.jpg") for n in range(6)
    ]
    write_corpus(tmp_path / "corpus", items, source={})
    asked = [
        Question(id=f"{split}{n}", split=split, image_id=f"{n}", question="?", path=f"{n}.jpg")
        for split, numbers in (("train", (0, 1, 1)), ("val", (1, 2)))
        for n in numbers
    ]
    write_questions(tmp_path / "questions", asked, source={}, tolerance=Tolerance(allow_skipped=True))

    def listed(name: str, *splits: str, limit: int | None = None) -> list[tuple[str, str]]:
        found = verb._listed(open_corpus(tmp_path / name), list(splits), limit=limit, texts=False)
        return [(item.id, item.split) for item in found]

    each = [("1", "val"), ("3", "val"), ("5", "val"), ("0", "train"), ("2", "train"), ("4", "train")]
    assert listed("corpus", "val", "train") == each
    assert listed("corpus", "val", "train", "val") == each
    assert listed("corpus", "val", "train", limit=1) == [each[0], each[3]]
    assert listed("questions", "train", "val", "train") == [("0", "train"), ("1", "train"), ("2", "val")]
