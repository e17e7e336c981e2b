import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from polypool.infra.errors import InputError
from polypool.infra.files import sha256
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


def rewrite(folder: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change the table of a corpus, and its digest with it."""
    path, manifest = folder / "corpus.arrow", folder / "corpus.json"
    with pa.ipc.open_file(path) as file:
        table = change(file.read_all())
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table)
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"sha256": sha256(path)}))


def with_column(name: str, values: pa.Array) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.set_column(table.column_names.index(name), name, values)


GAPS = pa.array([["a", None], None], pa.list_(pa.string()))
DAMAGED = pa.array([b"a", b"\xff"]).view(pa.string())  # as a damaged file may hold them
LISTS = "captions must be list<item: string>, not"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_column("id", pa.array([1, 2])), "the column id must be string, not int64"),
        (with_column("captions", pa.array(["a", "b"])), f"{LISTS} string"),
        (with_column("captions", pa.array([[1], [2]])), f"{LISTS} list<item: int64>"),
        (with_column("path", pa.array(["a", None])), "path must have no missing values, not 1"),
        (with_column("captions", GAPS), "captions must have no missing values, not 2"),
        (lambda t: t.drop_columns("path"), "the column path must be string, not missing"),
        (lambda t: t.append_column("id", t["id"]), "the column id must be string, not string and string"),
        (with_column("id", DAMAGED), "not a table of items: .*UTF8"),
        (lambda t: t.slice(1), "splits must be {'train': 1}, as in corpus.arrow, not {'train': 2}"),
    ],
)
def test_a_table_of_other_types_is_refused_though_its_digest_is_right(change, message, tmp_path):
    write_corpus(tmp_path, [item("a", "c1", "c2"), item("b", "c3")], source={})
    rewrite(tmp_path, change)
    with pytest.raises(InputError, match=message):
        Corpus.open(tmp_path)
