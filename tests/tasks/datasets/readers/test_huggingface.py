"""Local Hugging Face data sets and WebDataset tar shards, read with the package `datasets`."""

import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from verbs import corpus_of, ingested, refused

from polypool.tasks.datasets.corpus import QuestionCorpus

datasets = pytest.importorskip("datasets", reason="not installed (pip install 'polypool[hf]')")


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))


def picture(shade: int, kind: str = "png") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (2, 2), (shade, 0, 9)).save(buffer, kind)
    return buffer.getvalue()


def write_parquet(folder: Path, **splits: list[dict[str, Any]]) -> tuple[object, ...]:
    """Write Parquet files as on the Hub, one per split; return the arguments that read them."""
    (folder / "set" / "data").mkdir(parents=True)
    for split, rows in splits.items():
        part = datasets.Dataset.from_list(rows).cast_column("image", datasets.Image())
        part.to_parquet(str(folder / "set" / "data" / f"{split}-00000-of-00001.parquet"))
    return "hf", "--name", folder / "set", "--images", folder / "pictures"


def rows(count: int, start: int = 0, kind: str = "png") -> list[dict[str, Any]]:
    captions = {n: [f"picture {n}", f"number {n}"] for n in range(start, start + count)}
    return [
        {"image": {"bytes": picture(n, kind), "path": None}, "captions": texts, "other": n, "image_id": 7}
        for n, texts in captions.items()
    ]


def test_hf_splits_images_and_captions_are_read(tmp_path):
    words = write_parquet(tmp_path, train=rows(6), validation=rows(2, 6, "jpeg"), test=rows(3, 8))
    said, corpus, _ = corpus_of(tmp_path / "out", *words)
    assert "guessed: text: the column 'captions'" in said
    assert "splits: train, validation, test" in said
    assert dict(corpus.splits) == {"train": 6, "val": 2, "test": 3}
    (first, *_) = corpus.items("val")
    assert (first.id, first.captions) == ("validation/0.jpg", ("picture 6", "number 6"))
    assert corpus.image_path(first).read_bytes() == picture(6, "jpeg")


def test_hf_questions_share_images_and_have_unique_ids(tmp_path):
    asked = [
        {
            "image": {"bytes": picture(n // 2), "path": None},
            "image_id": n // 2,
            "question": f"{n}?",
            "answer": "a",
        }
        for n in range(10)
    ]
    words = write_parquet(tmp_path, train=asked[:6], validation=asked[6:8], test=asked[8:])
    ingested(*words, "--out", tmp_path / "out")
    corpus = QuestionCorpus.open(tmp_path / "out")
    found = [each.id for split in corpus.splits for each in corpus.questions(split)]
    assert found == [str(n) for n in range(1, 11)]
    (first, second) = corpus.questions("val")
    assert (first.image_id, first.path, second.path) == ("3", "validation/0.png", "validation/0.png")
    assert len([*(tmp_path / "pictures").rglob("*.png")]) == 5


def test_hf_single_split_is_divided_by_its_column_of_splits(tmp_path):
    """As nlphuji/flickr30k on the hub, whose only split is called `test`."""
    names = ["train", "train", "validation", "test"]
    words = write_parquet(
        tmp_path, test=[row | {"split": name} for row, name in zip(rows(4), names, strict=True)]
    )
    said, corpus, _ = corpus_of(tmp_path / "out", *words)
    assert "guessed: split: the column 'split'" in said
    assert "splits: train, validation, test" in said
    assert corpus.splits == {"train": 2, "val": 1, "test": 1}
    assert [item.captions for item in corpus.items("val")] == [("picture 2", "number 2")]
    assert "splits are random" in corpus_of(tmp_path / "shares", *words, "--split", "2/1/1")[0]


@pytest.mark.parametrize("part", ["train", "test"])
def test_hf_column_of_other_words_does_not_divide(part, tmp_path):
    words = write_parquet(
        tmp_path, **{part: [row | {"split": f"fold {row['other'] % 2}"} for row in rows(10)]}
    )
    constant = write_parquet(tmp_path / "constant", train=[row | {"split": "train"} for row in rows(10)])
    assert corpus_of(tmp_path / "also", *constant)[1].splits == {"train": 6, "val": 2, "test": 2}
    said, corpus, _ = corpus_of(tmp_path / "out", *words)
    assert "'split'" in next(line for line in said.splitlines() if "not read: the columns" in line)
    assert corpus.splits == ({"train": 6, "val": 2, "test": 2} if part == "train" else {"test": 10})


@pytest.mark.filterwarnings(
    "error::PIL.Image.DecompressionBombWarning"
)  # as `polypool.infra.pictures` sets it
def test_hf_bad_images_are_listed_and_bad_input_is_refused(tmp_path, monkeypatch):
    bad = [b"no picture", huge := io.BytesIO()]
    Image.new("1", (10_000, 10_000)).save(huge, "png")
    bad[1] = huge.getvalue()
    broken = [{"image": {"bytes": data, "path": None}, "captions": ["a"], "other": 0} for data in bad]
    words, out = write_parquet(tmp_path, train=[*rows(4), *broken, *rows(4, 4)]), ("--out", tmp_path / "out")
    skipped = corpus_of(tmp_path / "out", *words, "--split", "6/1/1")[2]
    assert skipped == [(f"train, row {n}", "a row without a picture that can be read") for n in (4, 5)]
    refused("the column 'other' holds", *words, *out, "--image-column", "other", lines=1)
    unknown = ("hf", "--name", tmp_path / "none", *words[3:])
    refused("cannot be loaded by `datasets`", *unknown, *out, lines=1)
    monkeypatch.setitem(sys.modules, "datasets", None)
    refused("pip install 'polypool[hf]'", *words, *out)


def shard(path: Path, members: list[tuple[str, bytes | str]]) -> tuple[object, ...]:
    """Write a tar file, compressed if its name ends in .gz; return the arguments that read it."""
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as tar:
        for name, content in members:
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return "webdataset", "--images", path.parent / "pictures", "--shards", path


def samples(numbers: range) -> list[tuple[str, bytes | str]]:
    return [each for n in numbers for each in ((f"{n}.png", picture(n)), (f"{n}.txt", f"the picture {n}"))]


def test_webdataset_shards_become_images_with_captions(tmp_path):
    told = [json.dumps({"caption": ["one", f"two\n{n}"], "url": "x"}) for n in range(6)]
    files = [each for n in range(6) for each in ((f"in/{n}.json", told[n]), (f"in/{n}.png", picture(90 + n)))]
    shard(tmp_path / "b.tar.gz", files)
    listed = [*samples(range(5)), ("5.png", picture(5)), ("5.txt", "the first\n\nthe second\n")]
    shard(tmp_path / "c.tar", [("1.jpg", picture(1, "jpeg")), ("1.caption", "un café\n")])
    words = (*shard(tmp_path / "a.tar", listed), tmp_path / "b.tar.gz", tmp_path / "c.tar")
    said, corpus, _ = corpus_of(tmp_path / "out", *words)
    assert "splits are random: train/val/test 80/10/10, seed 0" in said
    assert "a quote in the file" not in said
    assert dict(corpus.splits) == {"train": 9, "val": 2, "test": 2}
    items = {item.id: item for split in corpus.splits for item in corpus.items(split)}
    assert items["c/1.jpg"].captions == ("un café",)
    assert items["a/4.png"].captions == ("the picture 4",)
    assert items["a/5.png"].captions == ("the first", "the second")
    assert items["b.tar/in/3.png"].captions == ("one", "two 3")
    assert corpus.image_path(items["b.tar/in/3.png"]).read_bytes() == picture(93)
    before = (tmp_path / "out" / "corpus.arrow").read_bytes()
    corpus_of(tmp_path / "out", *words)
    assert (tmp_path / "out" / "corpus.arrow").read_bytes() == before, "a second run must not change it"


def test_webdataset_bad_samples_and_outside_paths_are_skipped(tmp_path):
    odd = [
        ("../away.png", picture(7)),
        ("../away.txt", "away"),
        ("/top.png", picture(7)),
        ("/top.txt", "away"),
        ("alone.txt", "no picture"),
        ("silent.png", picture(7)),
    ]
    unusable, leaves = "a sample without a picture or a text", "a name that leaves the folder of images"
    assert corpus_of(tmp_path / "out", *shard(tmp_path / "a.tar", samples(range(5)) + odd))[2] == [
        ("a.tar, ../away", leaves),
        ("a.tar, /top", leaves),
        ("a.tar, alone", unusable),
        ("a.tar, silent", unusable),
    ]
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.png"))
    assert files == [f"pictures/a/{n}.png" for n in range(5)]
    assert (tmp_path / "pictures/a/1.png").read_bytes() == picture(1)


@pytest.mark.parametrize("content", [b"no tar file", b"", None], ids=["another", "empty", "cut short"])
def test_damaged_tar_file_is_refused(content, tmp_path):
    words = shard(tmp_path / "a.tar", samples(range(9)))
    whole = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(whole[:5000] if content is None else content)
    refused("a.tar: cannot be", *words, "--out", tmp_path / "out")
    assert not [*(tmp_path / "out").glob("*.arrow")]
