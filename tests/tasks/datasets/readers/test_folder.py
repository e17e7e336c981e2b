"""Folders of somebody's own, as `ingest folder` reads them."""

from pathlib import Path

import pytest
from PIL import Image
from verbs import reasons, refused, run

from polypool.tasks.datasets.corpus import Corpus


def picture(path: Path, *lines: str) -> None:
    """Write a picture and, where there are lines, the text beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (2, 2), (len(path.stem), 5, 9)).save(path)
    if lines:
        path.with_suffix(".txt").write_text("\n".join(lines))


def test_each_line_beside_a_picture_is_a_caption(tmp_path):
    for n in range(10):
        picture(tmp_path / "in" / f"{n % 2}" / f"{n}.png", f"the picture {n}", "", f"number {n}")
    code, said, error = run("folder", "--dir", tmp_path / "in", "--split", "6/2/2", "--out", tmp_path / "out")
    assert (code, "splits are random: train/val/test 6/2/2, seed 0" in said) == (0, True), error
    corpus = Corpus.open(tmp_path / "out")
    assert dict(corpus.splits) == {"train": 6, "val": 2, "test": 2}
    items = {item.id: item for split in corpus.splits for item in corpus.items(split)}
    assert items["1/3.png"].captions == ("the picture 3", "number 3")
    assert corpus.image_path(items["1/3.png"]) == tmp_path / "in" / "1" / "3.png"


def test_folders_that_are_called_so_are_the_splits(tmp_path):
    for n, split in enumerate(["training"] * 3 + ["validation"] + ["Test"] * 2):
        picture(tmp_path / "in" / split / f"{n}.png", f"the picture {n}")
    code, said, _ = run("folder", "--dir", tmp_path / "in", "--out", tmp_path / "out")
    assert (code, "guessed: the folders test, train, val are the splits" in said) == (0, True)
    assert dict(Corpus.open(tmp_path / "out").splits) == {"train": 3, "val": 1, "test": 2}
    picture(tmp_path / "in" / "more" / "7.png", "one beside the splits")
    assert "splits are random" in run("folder", "--dir", tmp_path / "in", "--out", tmp_path / "out")[1]


def test_what_has_no_text_or_picture_is_listed(tmp_path):
    for n in range(8):
        picture(tmp_path / "in" / f"{n}.png", f"the picture {n}")
    picture(tmp_path / "in" / "silent.png")
    (tmp_path / "in" / "lonely.txt").write_text("a text")
    picture(tmp_path / "in" / "latin.png", "x")
    (tmp_path / "in" / "latin.txt").write_bytes(b"caf\xe9")
    picture(tmp_path / "in" / "book.png", "x")
    (tmp_path / "in" / "book.txt").write_text("word " * 300_000)
    code, said, _ = run("folder", "--dir", tmp_path / "in", "--out", tmp_path / "out", "--allow-skipped")
    assert (code, "a text beside no picture or video: lonely.txt" in said) == (0, True)
    assert sorted(reasons(tmp_path / "out", "corpus.skipped.jsonl")) == [
        ("book.txt", "a text of more than 1,048,576 bytes"),
        ("latin.txt", "a text that is not UTF-8"),
        ("silent.png", "no .txt file of its name beside it"),
    ]


@pytest.mark.parametrize(
    ("name", "why"), [("none", "no such folder"), ("empty", "holds no pictures or videos")]
)
def test_a_folder_without_pictures_is_one_line(name, why, tmp_path):
    (tmp_path / "empty").mkdir()
    refused(why, "folder", "--dir", tmp_path / name, "--out", tmp_path / "out", lines=1)
