"""Data sets of Hugging Face, as `ingest hf` reads them from a local folder."""

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from verbs import corpus_of, ingested, refused

from polypool.tasks.datasets.corpus import QuestionCorpus


def picture(shade: int, kind: str = "png") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (2, 2), (shade, 0, 9)).save(buffer, kind)
    return buffer.getvalue()


def kept(folder: Path, **splits: list[dict[str, Any]]) -> Path:
    """Write a folder of Parquet files as the hub has them, one of each split."""
    datasets = pytest.importorskip("datasets", reason="not installed (pip install 'polypool[hf]')")
    for split, rows in splits.items():
        part = datasets.Dataset.from_list(rows).cast_column("image", datasets.Image())
        (folder / "data").mkdir(parents=True, exist_ok=True)
        part.to_parquet(str(folder / "data" / f"{split}-00000-of-00001.parquet"))
    return folder


def rows(count: int, start: int = 0, kind: str = "png") -> list[dict[str, Any]]:
    captions = {n: [f"picture {n}", f"number {n}"] for n in range(start, start + count)}
    return [
        {"image": {"bytes": picture(n, kind), "path": None}, "captions": texts, "other": n, "image_id": 7}
        for n, texts in captions.items()
    ]


def words(folder: Path) -> tuple[object, ...]:
    return "hf", "--name", folder / "set", "--images", folder / "pictures"


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))


def test_its_splits_pictures_and_captions_become_a_corpus(tmp_path):
    kept(tmp_path / "set", train=rows(6), validation=rows(2, 6, "jpeg"), test=rows(3, 8))
    said, corpus, _ = corpus_of(tmp_path / "out", *words(tmp_path))
    assert "guessed: text: the column 'captions'" in said
    assert "splits: train, validation, test" in said
    assert dict(corpus.splits) == {"train": 6, "val": 2, "test": 3}
    (first, *_) = corpus.items("val")
    assert (first.id, first.captions) == ("validation/0.jpg", ("picture 6", "number 6"))
    assert corpus.image_path(first).read_bytes() == picture(6, "jpeg")


def test_questions_about_a_picture_share_it_and_are_numbered_over_all_splits(tmp_path):
    asked = [
        {
            "image": {"bytes": picture(n // 2), "path": None},
            "image_id": n // 2,
            "question": f"{n}?",
            "answer": "a",
        }
        for n in range(10)
    ]
    kept(tmp_path / "set", train=asked[:6], validation=asked[6:8], test=asked[8:])
    ingested(*words(tmp_path), "--out", tmp_path / "out")
    corpus = QuestionCorpus.open(tmp_path / "out")
    assert [each.id for split in corpus.splits for each in corpus.questions(split)] == [
        str(n) for n in range(1, 11)
    ]
    (first, second) = corpus.questions("val")
    assert (first.image_id, first.path, second.path) == ("3", "validation/0.png", "validation/0.png")
    assert len([*(tmp_path / "pictures").rglob("*.png")]) == 5


def test_a_row_without_a_picture_is_listed_and_a_column_of_none_refused(tmp_path):
    broken = [{"image": {"bytes": b"no picture", "path": None}, "captions": ["a"], "other": 0}]
    kept(tmp_path / "set", train=[*rows(4), *broken, *rows(4, 4)])
    skipped = corpus_of(tmp_path / "out", *words(tmp_path), "--split", "6/1/1")[2]
    assert skipped == [("train, row 4", "a row without a picture that can be read")]
    out = ("--out", tmp_path / "out")
    refused("the column 'other' holds", *words(tmp_path), *out, "--image-column", "other", lines=1)


def test_a_name_that_cannot_be_loaded_is_one_line(tmp_path):
    pytest.importorskip("datasets", reason="not installed (pip install 'polypool[hf]')")
    refused("cannot be loaded by `datasets`", *words(tmp_path), "--out", tmp_path / "out", lines=1)


def test_without_the_package_it_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    refused("pip install 'polypool[hf]'", *words(tmp_path), "--out", tmp_path / "out")
