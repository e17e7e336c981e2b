"""Corpora of captions and of questions: written, skipped, flagged and refused rows."""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
from corpora import make_corpus, make_questions
from PIL import Image

from polypool.infra.errors import InputError
from polypool.infra.store.findings import Flagged, Skipped, Tolerance
from polypool.tasks.datasets.corpus import (
    Corpus,
    Item,
    Question,
    QuestionCorpus,
    media_file,
    open_corpus,
    write_corpus,
    write_questions,
)


def item(*captions: str, **changes: object) -> Item:
    return Item(**({"id": "a", "split": "train", "captions": captions or ("a cat",)} | changes))


def question(text: str = "a cat?", **changes: object) -> Question:
    return Question(**({"id": "a", "split": "train", "image_id": "1", "question": text} | changes))


KINDS = pytest.mark.parametrize(
    ("kind", "write", "row"), [(Corpus, write_corpus, item), (QuestionCorpus, write_questions, question)]
)


def test_items_are_read_in_written_order(tmp_path, monkeypatch):
    monkeypatch.setattr(Corpus, "batch", 40)
    given = [
        item(f"one {i}", f"two {i}", id=str(i), split="val" if i % 3 else "train", path=f"{i}.jpg")
        for i in range(90)
    ]
    summary = write_corpus(tmp_path, given, source={"reader": "test"}, images=tmp_path)
    corpus = Corpus.open(tmp_path)
    assert summary.splits == corpus.splits == {"train": 30, "val": 60}
    assert summary.captions == 180
    for split in corpus.splits:
        assert corpus.items(split) == [it for it in given if it.split == split]
    assert corpus.ids.to_pylist() == [it.id for it in given]
    assert corpus.image_path(given[7]) == tmp_path / "7.jpg"
    assert corpus.manifest.source == {"reader": "test"}


def test_skipped_rows_are_counted_and_listed(tmp_path):
    given = [item("good", " "), Skipped(where="line 2", why="torn"), item("", id="b"), item("again")]
    summary = write_corpus(tmp_path, given, source={}, tolerance=Tolerance(allow_skipped=True))
    corpus = Corpus.open(tmp_path)
    assert corpus.items("train") == [item("good")]
    once = ("torn", "no captions", "duplicate id; the first is kept")
    counts = {why: reason["count"] for why, reason in summary.skipped["reasons"].items()}
    assert counts == {"a caption that is empty": 2, **dict.fromkeys(once, 1)}
    assert corpus.manifest.skipped == summary.skipped
    listed = [json.loads(line) for line in (tmp_path / "corpus.skipped.jsonl").read_text().splitlines()]
    assert len(listed) == summary.skipped["count"] == 5
    assert {"where": "id a, caption 2", "why": "a caption that is empty"} in listed


def test_failed_write_keeps_the_old_corpus(tmp_path, monkeypatch):
    monkeypatch.setattr(Corpus, "batch", 4)
    write_corpus(tmp_path, [item()], source={})

    def broken() -> Iterator[Item]:
        yield from (item(id=str(i)) for i in range(5))
        raise InputError("the reader fails")

    with pytest.raises(InputError, match="the reader fails"):
        write_corpus(tmp_path, broken(), source={})
    assert Corpus.open(tmp_path).items("train") == [item()]


def test_only_test_splits_may_share_question_ids(tmp_path):
    given = [question(answers=("b",)), question(answers=("b",), split="val")]
    given += [question(id="c", image_id="2", split=split) for split in ("test2015", "test-dev", "test-dev")]
    summary = write_questions(tmp_path, given, source={}, tolerance=Tolerance(allow_skipped=True))
    assert summary.splits == {"train": 1, "test2015": 1, "test-dev": 1}
    assert summary.skipped["reasons"]["duplicate id; the first is kept"]["count"] == 2
    assert (summary.images["train"], summary.answers) == (1, {"0": 2, "1": 1})
    opened = QuestionCorpus.open(tmp_path)
    assert [(image.id, image.split) for image in opened.items("test2015")] == [("2", "test2015")]
    assert opened.ids.to_pylist() == ["1", "2"]


def test_folder_with_two_corpora_is_refused(tmp_path):
    write_corpus(tmp_path, [item()], source={})
    assert open_corpus(tmp_path).items("train") == [item()]
    with pytest.raises(InputError, match=r"corpus\.json: no such file"):
        open_corpus(tmp_path / "none")
    write_questions(tmp_path, [question()], source={})
    with pytest.raises(InputError, match=r"has both corpus\.json and questions\.json"):
        open_corpus(tmp_path)


def test_captions_shared_by_splits_are_flagged(tmp_path):
    captions = {
        "train": [("a cat", "a dog", "twice", "twice"), ("twice",)],
        "val": [("a  cat", "a bird")],
        "test": [("A cat", "x"), ("new", "a bird", "a dog")],
        "other": [("x", "twice")],
    }
    items = [
        item(*texts, id=f"{split}{n}", split=split)
        for split in captions
        for n, texts in enumerate(captions[split])
    ]
    summary = write_corpus(tmp_path, items, source={})
    assert {why: reason["examples"] for why, reason in summary.flagged["reasons"].items()} == {
        "the same caption in train and val": ["id val0, caption 1"],
        "the same caption in train and test": ["id test1, caption 3"],
        "the same caption in train and other": ["id other0, caption 2"],
        "the same caption in val and test": ["id test1, caption 2"],
    }
    assert len((tmp_path / "corpus.warnings.jsonl").read_text().splitlines()) == 4
    assert Corpus.open(tmp_path).manifest.flagged == summary.flagged
    write_corpus(tmp_path, items[:2], source={})
    assert not (tmp_path / "corpus.warnings.jsonl").exists()


def test_identical_images_in_two_splits_are_detected(tmp_path):
    long = bytes(19_999) + b"!"
    other_end, other_middle = long[:-1] + b"?", long[:10_000] + b"?" + long[10_001:]
    contents = {"a": long, "b": long, "c": other_end, "d": other_middle}
    contents |= {"e": b"short", "f": b"trohs", "g": b"short", "empty1": b"", "empty2": b""}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    os.mkfifo(tmp_path / "pipe")  # must not be opened: opening it would block forever
    train = ("a", "c", "e", "empty1", "pipe", "gone")
    names = [*contents, "pipe", "gone"]
    items = [item(name, id=name, split="train" if name in train else "test", path=name) for name in names]
    message = "2 x the same file in train and test: id b, as id a; id g, as id e"
    with pytest.raises(InputError, match=message) as caught:
        write_corpus(tmp_path / "out", items, source={}, images=tmp_path, tolerance=Tolerance(strict=True))
    assert caught.value.exit_code == 2


def test_question_images_shared_by_splits_are_flagged(tmp_path):
    for name in ("7.png", "8.png"):
        (tmp_path / name).write_bytes(b"seven")
    asked = [("train", "7.png")] * 2 + [("test", "7.png")] * 2 + [("test", "8.png")]
    asked += [("test-dev", "9.png"), ("test2015", "9.png")]
    rows = [
        question(id=str(n), split=split, image_id=image, path=image) for n, (split, image) in enumerate(asked)
    ]
    summary = write_questions(tmp_path / "out", rows, source={}, images=tmp_path)
    assert {why: reason["examples"] for why, reason in summary.flagged["reasons"].items()} == {
        "a question whose image is in train and test": ["question 2, image 7.png", "question 3, image 7.png"],
        "the same file in train and test": ["id 8.png, as id 7.png"],
    }


@KINDS
def test_missing_split_or_image_is_refused(kind, write, row, tmp_path):
    write(tmp_path, [row(), row("b", id="b", split="val"), row("c", id="c", split="val")], source={})
    opened = kind.open(tmp_path)
    message = rf"no {kind.units[0]} in the split 'test'; there are train \(1\), val \(2\)"
    for read in (opened.items, getattr(opened, "questions", opened.items), opened.check_split):
        with pytest.raises(InputError, match=message):
            read("test")
    with pytest.raises(InputError, match="has no file; ingest the corpus again"):
        opened.image_path(opened.items("train")[0])


@KINDS
def test_empty_or_damaged_corpus_is_refused(kind, write, row, tmp_path):
    with pytest.raises(InputError, match=r"nothing usable was found; skipped [12]:\n"):
        write(tmp_path, [row("")], source={})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match=rf"{kind.name}\.json: no such file"):
        kind.open(tmp_path)
    write(tmp_path, [row()], source={})
    path, manifest = tmp_path / f"{kind.name}.arrow", tmp_path / f"{kind.name}.json"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match="half written or changed"):
        kind.open(tmp_path)
    text = manifest.read_text()
    for changed, message in (
        (text[:60], rf"{kind.name}\.json: not valid JSON at line"),
        (text.replace('"version": 1', '"version": 0'), f"not {kind.what} of version 1"),
    ):
        manifest.write_text(changed)
        with pytest.raises(InputError, match=message):
            kind.open(tmp_path)


def test_digests_are_computed_from_image_files(tmp_path):
    (tmp_path / "a.png").write_bytes(b"one")
    names = ("a.png", "gone.png", "a.png", *(f"{n}.png" for n in range(70)))
    for name in names[3:]:
        (tmp_path / name).write_text(name)
    rows = [item(id=str(n), path=name, sha256="taken on trust") for n, name in enumerate(names)]
    write_corpus(tmp_path / "out", rows, source={}, images=tmp_path)
    one = hashlib.sha256(b"one").hexdigest()
    others = [hashlib.sha256(name.encode()).hexdigest() for name in names[3:]]
    found = [digest for (digest,) in Corpus.open(tmp_path / "out").rows("train", "sha256")]
    assert found == [one, "", one, *others]


def test_captions_are_cleaned_and_odd_ones_flagged():
    exact, longer = " ".join(["word"] * 1000), " ".join(["word"] * 1001)
    texts = {
        "...": ("...", "a caption without a word"),
        exact: (exact, ""),
        longer: (exact, "a caption of over 1,000 words, cut to these"),
        "x" * 10_001: ("x" * 10_000, "a caption of over 10,000 characters, cut to these"),
        "漢 字": ("漢 字", ""),
        "a\x00 dog\x1b[31m": ("a dog [31m", "a caption with control characters, which are left out"),
        "a\ttab\x85and lines\n": ("a tab and lines", ""),
        "\u202egod": ("god", "a caption with control characters, which are left out"),
    }
    *odd, kept = Corpus.clean(item(*texts))
    assert kept.captions == tuple(text for text, _ in texts.values())
    whys = enumerate((why for _, why in texts.values()), start=1)
    assert odd == [Flagged(where=f"id a, caption {number}", why=why) for number, why in whys if why]


@pytest.mark.parametrize("path", ["../secret.jpg", "a/../../secret.jpg", "/etc/hostname"])
def test_path_outside_image_folder_is_refused(tmp_path, path):
    (tmp_path / "images").mkdir()
    (tmp_path / "secret.jpg").touch()
    (left,) = QuestionCorpus.clean(question(path=path, split="test"), images=tmp_path / "images")
    assert (left.why, left.split) == ("a path that leaves the folder of images", "test")
    with pytest.raises(InputError, match="1 x a path that leaves the folder of images: id 'a'"):
        write_corpus(tmp_path / "out", [item(path=path)], source={}, images=tmp_path / "images")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"id": "a\x00b"}, "an id with characters that cannot be printed"),
        ({"id": "\udcff"}, "an id that is not valid UTF-8"),
        ({"path": "caf\udce9.jpg"}, "a path that is not valid UTF-8"),
        ({"split": ["train"]}, "a split that is not a string"),
        ({"split": ""}, "a split that is empty"),
        ({"caption_ids": ("1", "2")}, "another number of captions than of their ids"),
    ],
)
def test_invalid_item_is_skipped(changes, why):
    (left,) = Corpus.clean(item(**changes))
    assert left.why == why


def test_non_text_captions_questions_and_answers_are_skipped():
    *odd, last = Corpus.clean(item(0.5, "a dog", "\x07\x81", caption_ids=("1", "a\x00b", "3")))
    assert [(each.where, each.why) for each in (*odd, last)] == [
        ("id a, caption 1", "a caption that is not a string"),
        ("id a, caption 2", "an id of a caption with characters that cannot be printed"),
        ("id a, caption 3", "a caption that is empty"),
        ("id a", "no captions"),
    ]
    (left,) = QuestionCorpus.clean(question(7))
    assert left.why == "a question that is not a string"
    first, second, kept = QuestionCorpus.clean(
        question(answers=(True, "a\x07 dog", "cat"), label="a\x07 dog")
    )
    assert (first.why, first.part) == ("an answer that is not a string", True)
    assert second.why == "an answer, type or label with control characters, which are left out"
    assert (kept.answers, kept.label) == (("a  dog", "cat"), "a  dog")


@pytest.mark.parametrize("make", [make_corpus, make_questions])
def test_media_file_returns_only_files_of_the_corpus(make, tmp_path):
    images = tmp_path / "images"
    corpus = open_corpus(make(tmp_path, images=images).data.corpus)
    item = corpus.items("test")[0]
    assert media_file(corpus, item) is None, "a missing file must give None"
    images.mkdir(exist_ok=True)
    for path in (images / "inside.png", tmp_path / "secret.png", images / item.path):
        Image.new("RGB", (9, 9)).save(path)
    assert media_file(corpus, item) == images / item.path
    assert media_file(corpus, replace(item, path=str(images / "inside.png"))) == images / "inside.png"
    for path in ("", ".", "gone.png", "../secret.png", str(tmp_path / "secret.png")):
        assert media_file(corpus, replace(item, path=path)) is None, path
