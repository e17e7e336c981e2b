from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from stores import flip
from verbs import ingested, refused, run

from polypool.infra.store import FeatureStore
from polypool.tasks.datasets.corpus import Item, write_corpus


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of arrays with the ids 0 to 9."""
    (tmp_path / "in").mkdir()
    for i in range(10):
        np.save(tmp_path / "in" / f"{i}.npy", np.full((2, 4), i, np.float32))
    return tmp_path / "in"


def test_ids_are_checked_against_a_corpus(folder, tmp_path):
    items = [Item(id=str(i), split="train", captions=("a",)) for i in range(3, 14)]
    write_corpus(tmp_path / "corpus", items, source={})
    out = ingested("arrays", "--dir", folder, "--out", tmp_path / "out", "--corpus", tmp_path / "corpus")
    assert "ids with captions only: 4 such as 10, 11, 12, all in" in out
    assert "ids with features only: 3 such as 0, 1, 2, all in" in out
    listed = json.loads((tmp_path / "out" / "unmatched.json").read_text())
    assert listed == {"captions only": ["10", "11", "12", "13"], "features only": ["0", "1", "2"]}


def test_ids_that_are_paths_without_an_ending_become_those_of_the_pictures(tmp_path):
    paths = ["a/1.jpg", "b/1.jpg", "c/1.jpg", "c/1.png", "d/1.jpg"]
    items = [Item(id=path, split="train", captions=("a",), path=path) for path in paths]
    items += [Item(id="d/1", split="train", captions=("an id that is taken",), path="e/9.jpg")]
    write_corpus(tmp_path / "corpus", items, source={})
    for place in ("a", "b", "c", "d"):
        (tmp_path / "in" / place).mkdir(parents=True)
        np.save(tmp_path / "in" / place / "1.npy", np.ones((2, 4), np.float32))
    words = ("arrays", "--dir", tmp_path / "in", "--out", tmp_path / "out", "--corpus", tmp_path / "corpus")
    out = ingested(*words)
    assert FeatureStore.open(tmp_path / "out").ids.to_pylist() == ["a/1.jpg", "b/1.jpg", "c/1", "d/1"]
    assert "ids with features only: 1 such as c/1" in out  # of which there are two pictures


def test_a_missing_corpus_is_noticed_before_the_work(folder, tmp_path):
    words = ("arrays", "--dir", folder, "--out", tmp_path / "out", "--corpus", tmp_path / "x")
    refused("corpus.json: no such file", *words)
    assert not (tmp_path / "out").exists()
    refused("cannot make this folder", *words[:4], folder / "0.npy" / "out")


def test_verify_good_and_bad(folder, tmp_path):
    run("arrays", "--dir", folder, "--out", tmp_path / "out")
    out = ingested("verify", "--store", tmp_path / "out")
    assert "good: 10 sets, 20 vectors of 4 x float16" in out
    shard = tmp_path / "out" / "shard-00000.arrow"
    flip(shard, 200)
    refused(f"error: {shard}: its ids, offsets or checks changed", "verify", "--store", tmp_path / "out")


def test_wrong_usage_exits_with_2():
    code, out, err = run("karpathy", "--jsn", "x")
    assert code == 2
    assert "--json" in err + out
