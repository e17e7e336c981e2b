"""User folders of images and texts, as read by `ingest folder`."""

from pathlib import Path

from PIL import Image
from verbs import corpus_of, refused

from polypool.tasks.datasets.readers.folders import files_below


def picture(path: Path, *lines: str) -> None:
    """Write an image, and its text file if lines are given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (2, 2), (len(path.stem), 5, 9)).save(path)
    if lines:
        path.with_suffix(".txt").write_text("\n".join(lines))


def test_each_line_of_text_file_is_a_caption(tmp_path):
    for n in range(10):
        picture(tmp_path / "in" / f"{n % 2}" / f"{n}.png", f"the picture {n}", "", f"number {n}")
    files = "folder", "--dir", tmp_path / "in"
    said, corpus, _ = corpus_of(tmp_path / "out", *files, "--split", "6/2/2")
    assert "splits are random: train/val/test 6/2/2, seed 0" in said
    assert dict(corpus.splits) == {"train": 6, "val": 2, "test": 2}
    items = {item.id: item for split in corpus.splits for item in corpus.items(split)}
    assert items["1/3.png"].captions == ("the picture 3", "number 3")
    assert corpus.image_path(items["1/3.png"]) == tmp_path / "in" / "1" / "3.png"


def test_folders_named_after_splits_become_splits(tmp_path):
    for n, split in enumerate(["training"] * 3 + ["validation"] + ["Test"] * 2):
        picture(tmp_path / "in" / split / f"{n}.png", f"the picture {n}")
    files = "folder", "--dir", tmp_path / "in"
    said, corpus, _ = corpus_of(tmp_path / "out", *files)
    assert "guessed: the folders test, train, val are the splits" in said
    assert dict(corpus.splits) == {"train": 3, "val": 1, "test": 2}
    picture(tmp_path / "in" / "more" / "7.png", "one beside the splits")
    assert "splits are random" in corpus_of(tmp_path / "out", *files)[0]


def test_unpaired_or_undecodable_files_are_listed(tmp_path):
    for n in range(8):
        picture(tmp_path / "in" / f"{n}.png", f"the picture {n}")
    picture(tmp_path / "in" / "silent.png")
    (tmp_path / "in" / "lonely.txt").write_text("a text")
    picture(tmp_path / "in" / "latin.png", "x")
    (tmp_path / "in" / "latin.txt").write_bytes(b"caf\xe9")
    said, _, skipped = corpus_of(tmp_path / "out", "folder", "--dir", tmp_path / "in")
    assert "a text without a picture or video: lonely.txt" in said
    assert sorted(skipped) == [
        ("id latin.png", "no captions"),
        ("id latin.png, caption 1", "a caption that is not valid UTF-8"),
        ("silent.png", "no .txt file of the same name"),
    ]
    (tmp_path / "in" / "silent.txt").symlink_to(tmp_path / "gone.txt")
    refused("silent.txt: no such file", "folder", "--dir", tmp_path / "in", "--out", tmp_path / "no")


def test_files_below_stops_at_symlink_loops(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.jpg").touch()
    (tmp_path / "elsewhere" / "b").mkdir(parents=True)
    (tmp_path / "elsewhere" / "b" / "two.jpg").touch()
    for name in ("loop", "again"):
        (tmp_path / "a" / name).symlink_to(tmp_path / "a")
    (tmp_path / "a" / "linked").symlink_to(tmp_path / "elsewhere")
    assert sorted(files_below(tmp_path / "a")) == ["linked/b/two.jpg", "one.jpg"]
