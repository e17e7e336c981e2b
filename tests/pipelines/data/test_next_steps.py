"""Commands suggested after `ingest` and `extract`, with the arguments of the new corpus or store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from polypool.infra.process.output import command_line
from polypool.infra.store.manifest import Manifest
from polypool.pipelines.data import ingestion
from polypool.tasks.datasets.corpus import Item, Question, write_corpus, write_questions


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """The current folder, set as POLYPOOL_HOME."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYPOOL_HOME", str(tmp_path))
    return tmp_path


def corpus(path: str, *, splits: tuple[str, ...] = ("train", "val", "test")) -> str:
    items = [Item(id=f"{n}", split=split, captions=("a",), path=path) for n, split in enumerate(splits)]
    write_corpus("data/mine", items, source={})
    return "data/mine"


def lines(steps: list) -> list[str]:
    return [command_line(words).partition("polypool ")[2] for _, words in steps]


@pytest.mark.parametrize(
    ("path", "recipe", "made"),
    [
        ("1.MP4", "video_text", "extract --corpus data/mine --video --backbone cells --out data/mine/cells"),
        ("", "image_text", "ingest hdf5 --file FILE --corpus data/mine --out data/mine/features"),
    ],
)
def test_corpus_suggests_feature_and_training_commands(here, path, recipe, made):
    features = made.split()[-1]
    training = f"train {recipe} --corpus data/mine --features {features} --aggregator gpo"
    assert lines(ingestion.after_corpus(Path(corpus(path)))) == [made, training]
    assert lines(ingestion.after_store(Path(features))) == [training]
    assert lines(ingestion.after_store(Path("data/own"))) == [
        "train image_text --corpus CORPUS --features data/own"
    ]


def test_questions_suggest_vqa_training(here):
    first = Question(id="1", split="train", image_id="7", question="What?", path="7.jpg")
    write_questions("data/asked", [first], source={})
    assert len(lines(ingestion.after_corpus(Path("data/asked")))) == 1  # no validation split
    write_questions("data/asked", [first, replace(first, id="2", split="val")], source={})
    training = lines(ingestion.after_corpus(Path("data/asked")))[1]
    assert training.startswith("train vqa --corpus data/asked")
    assert training.endswith(" --no-test")  # no test split


def test_missing_splits_are_suggested_before_training(here):
    corpus("1.jpg", splits=("train", "val", "other"))
    manifest = Manifest(source={"splits": ["train"]}, dim=1, dtype="float16", shards=())
    words = ("--corpus", "data/mine", "--out", "data/mine/cells")
    steps = lines(
        ingestion.after_extraction(
            Path("data/mine/cells"), Path("data/mine"), manifest, words=words, texts=False
        )
    )
    assert steps[0] == "extract --corpus data/mine --out data/mine/cells --splits val"
    assert "--features data/mine/cells" in steps[1]
    manifest = Manifest(source={"splits": ["train", "val"]}, dim=1, dtype="float16", shards=())
    (of_texts,) = lines(
        ingestion.after_extraction(Path("data/t"), Path("data/mine"), manifest, words=words, texts=True)
    )
    assert of_texts == (
        "train image_text --corpus data/mine --features FEATURES --aggregator gpo --no-test --texts data/t"
    )
