import hashlib
import os

import pytest

from polypool.infra.errors import InputError
from polypool.infra.store.findings import Flagged, Skipped, Tolerance
from polypool.tasks.datasets.corpus import (
    Corpus,
    Item,
    Question,
    QuestionCorpus,
    write_corpus,
    write_questions,
)


def item(text: str = "a cat", **changes: str) -> Item:
    return Item(**({"id": "a", "split": "train", "captions": (text,)} | changes))


def question(text: str = "a cat?", **changes: str) -> Question:
    return Question(**({"id": "a", "split": "train", "image_id": "1", "question": text} | changes))


KINDS = pytest.mark.parametrize(
    ("kind", "write", "row"), [(Corpus, write_corpus, item), (QuestionCorpus, write_questions, question)]
)


@KINDS
def test_a_split_or_an_image_that_is_not_there(kind, write, row, tmp_path):
    write(tmp_path, [row(), row("b", id="b", split="val"), row("c", id="c", split="val")], source={})
    opened = kind.open(tmp_path)
    message = rf"no {kind.units[0]} in the split 'test'; there are train \(1\), val \(2\)"
    for read in (opened.items, getattr(opened, "questions", opened.items), opened.check_split):
        with pytest.raises(InputError, match=message):
            read("test")
    with pytest.raises(InputError, match="has no image: this corpus was made without"):
        opened.image_path(opened.items("train")[0])


@KINDS
def test_nothing_usable_is_an_error_and_leaves_no_corpus(kind, write, row, tmp_path):
    with pytest.raises(InputError, match=r"nothing usable was found; skipped [12]:\n"):
        write(tmp_path, [row("")], source={})
    assert list(tmp_path.iterdir()) == []


@KINDS
def test_a_damaged_or_missing_corpus_is_refused(kind, write, row, tmp_path):
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


@KINDS
def test_each_file_has_its_digest(kind, write, row, tmp_path):
    (tmp_path / "a.png").write_bytes(b"one")
    os.mkfifo(tmp_path / "pipe.png")  # never opened: that would wait for ever
    names = ("a.png", "gone.png", "pipe.png", "a.png", *(f"{n}.png" for n in range(70)))
    for name in names[4:]:
        (tmp_path / name).write_text(name)
    rows = [row(id=str(n), path=name, sha256="taken on trust") for n, name in enumerate(names)]
    write(tmp_path / "out", rows, source={}, images=tmp_path)
    opened, one = kind.open(tmp_path / "out"), hashlib.sha256(b"one").hexdigest()
    others = [hashlib.sha256(name.encode()).hexdigest() for name in names[4:]]
    assert [digest for (digest,) in opened.rows("train", "sha256")] == [one, "", "", one, *others]
    assert [item.sha256 for item in opened.items("train")][:1] == [one]


def test_long_captions_are_cut_and_wordless_ones_named():
    exact, longer = " ".join(["word"] * 1000), " ".join(["word"] * 1001)
    given = Item(id="a", split="train", captions=("...", exact, longer, "漢 字", "?! 7", "x" * 10_001))
    *odd, kept = Corpus.clean(given)
    assert odd == [
        Flagged(where="id a, caption 1", why="a caption without a word"),
        Flagged(where="id a, caption 3", why="a caption of over 1,000 words, cut to these"),
        Flagged(where="id a, caption 6", why="a caption of over 10,000 characters, cut to these"),
    ]
    assert kept.captions == ("...", exact, exact, "漢 字", "?! 7", "x" * 10_000)


def test_control_characters_are_left_out_and_named():
    given = Item(
        id="a",
        split="train",
        captions=("a\x00 dog\x1b[31m", "a\ttab\x85and lines\n", "\x07\x81\x9b", "\u202egod"),
    )
    *odd, kept = Corpus.clean(given)
    why = "a caption with control characters, which are left out"
    assert odd == [
        Flagged(where="id a, caption 1", why=why),
        Skipped(where="id a, caption 3", why="a caption that is empty", part=True),
        Flagged(where="id a, caption 4", why=why),
    ]
    assert kept.captions == ("a dog [31m", "a tab and lines", "god")


@pytest.mark.parametrize("path", ["../secret.jpg", "a/../../secret.jpg", "/etc/hostname"])
def test_a_path_that_leaves_the_folder_is_refused(tmp_path, path):
    (tmp_path / "images").mkdir()
    (tmp_path / "secret.jpg").touch()
    given = item(path=path)
    (left,) = Corpus.clean(given, images=tmp_path / "images")
    assert left == Skipped(where="id 'a'", why="a path that leaves the folder of images", split="train")
    (left,) = QuestionCorpus.clean(question(path=path, split="test"), images=tmp_path / "images")
    assert (left.why, left.split) == ("a path that leaves the folder of images", "test")
    with pytest.raises(InputError, match="1 x a path that leaves the folder of images: id 'a'"):
        write_corpus(tmp_path / "out", [given], source={}, images=tmp_path / "images")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"id": "a\x00b"}, "an id with characters that cannot be printed"),
        ({"id": "\udcff"}, "an id that is not valid UTF-8"),
        ({"path": "caf\udce9.jpg"}, "a path that is not valid UTF-8"),
        ({"path": None}, "a path that is not a string"),
        ({"split": "\udcff"}, "a split that is not valid UTF-8"),
        ({"split": ["train"]}, "a split that is not a string"),
        ({"split": ""}, "a split that is empty"),
        ({"caption_ids": ("1", "2")}, "another number of captions than of their ids"),
    ],
)
def test_an_item_that_cannot_be_written_is_skipped(changes, why):
    (left,) = Corpus.clean(item(**changes))
    assert left.why == why


def test_a_caption_that_is_no_text_is_left_out_by_every_reader():
    given = Item(id="a", split="train", captions=(0.5, "a dog", None), caption_ids=("1", "a\x00b", "3"))
    *odd, last = Corpus.clean(given)
    assert [(each.where, each.why) for each in (*odd, last)] == [
        ("id a, caption 1", "a caption that is not a string"),
        ("id a, caption 2", "an id of a caption with characters that cannot be printed"),
        ("id a, caption 3", "a caption that is not a string"),
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


def test_a_caption_id_belongs_to_one_caption(tmp_path):
    items = [
        Item(id="a", split="train", captions=("a dog", "a cat"), caption_ids=("1", "2")),
        Item(id="b", split="train", captions=("a hat", "a bat", "a rat"), caption_ids=("2", "3", "3")),
        Item(id="c", split="train", captions=("a tree",), caption_ids=("1",)),
        Item(id="d", split="train", captions=("no ids",)),
    ]
    summary = write_corpus(tmp_path, items, source={}, tolerance=Tolerance(allow_skipped=True))
    why = "a caption whose id another one has; the first is kept"
    assert summary.skipped["reasons"][why]["examples"] == [
        "id b, caption 1",
        "id b, caption 3",
        "id c, caption 1",
    ]
    kept = {item.id: (item.captions, item.caption_ids) for item in Corpus.open(tmp_path).items("train")}
    assert kept == {
        "a": (("a dog", "a cat"), ("1", "2")),
        "b": (("a bat",), ("3",)),
        "d": (("no ids",), ()),
    }
