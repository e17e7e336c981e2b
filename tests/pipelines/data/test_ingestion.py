from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from annotations import karpathy_entry, msrvtt_sentence, msrvtt_video, write_karpathy, write_msrvtt
from stores import flip
from verbs import ingested, refused

from polypool.infra.store import FeatureStore
from polypool.tasks.datasets.corpus import Item, write_corpus


def corpus_of_paths(folder: Path, paths: Sequence[str], *, ids: Sequence[str] = ()) -> Path:
    """Write a corpus of images, with paths as default ids; the last two are for validation and test."""
    splits = [*["train"] * (len(paths) - 2), "val", "test"]
    items = [
        Item(id=id, split=split, captions=("a",), path=path)
        for id, path, split in zip(ids or paths, paths, splits, strict=True)
    ]
    write_corpus(folder / "corpus", items, source={})
    return folder / "corpus"


def arrays(folder: Path, names: Sequence[str]) -> Path:
    for n, name in enumerate(names):
        (folder / f"{name}.npy").parent.mkdir(parents=True, exist_ok=True)
        np.save(folder / f"{name}.npy", np.full((2, 4), n, np.float32))
    return folder


TEN = [str(n) for n in range(10)]


@pytest.mark.parametrize(
    ("ids", "paths", "names", "how"),
    [
        (TEN, "{}.jpg", "{}", "equal (id)"),
        ([], "{}.jpg", "{}", "equal but for endings such as .jpg (id)"),
        ([], "photos/{}.jpg", "x/{}.jpg", "equal base names (id)"),
        ([], "photos/{}.jpg", "{}", "equal base names but for endings such as .jpg (id)"),
        (list("abcdefghij"), "photos/{}.jpg", "{}", "equal base names but for endings such as .jpg (file)"),
        ([], "video{}", "{}", "equal numbers at the end (id)"),
        (TEN, "{}.jpg", "COCO_val2014_{:0>12}", "equal numbers at the end (id)"),
    ],
)
def test_ids_are_matched_by_best_fitting_rule(tmp_path, ids, paths, names, how):
    corpus = corpus_of_paths(tmp_path, [paths.format(n) for n in TEN], ids=ids)
    folder = arrays(tmp_path / "in", [names.format(n) for n in TEN])
    out = ingested("arrays", "--dir", folder, "--out", tmp_path / "out", "--corpus", corpus)
    assert f"features of 10 of 10 images or videos, found by {how}" in out
    store, own = FeatureStore.open(tmp_path / "out"), ids or [paths.format(n) for n in TEN]
    assert store.ids.to_pylist() == own
    assert [store[row][0, 0] for row in range(10)] == [*range(10)]


def test_features_without_matching_items_are_refused(tmp_path):
    corpus = corpus_of_paths(tmp_path, [f"photos/{n}.jpg" for n in TEN])
    words = ("arrays", "--dir", arrays(tmp_path / "in", [f"x{n}y" for n in TEN]), "--out", tmp_path / "out")
    refused(
        "their ids are photos/0.jpg, photos/1.jpg, photos/2.jpg, ..., the ids", *words, "--corpus", corpus
    )
    refused("--id-column", *words, "--corpus", corpus)
    assert not (tmp_path / "out").exists()


def test_low_match_rate_needs_min_matched_option(tmp_path):
    corpus = corpus_of_paths(tmp_path, [f"{n}.jpg" for n in range(3, 103)])
    folder = arrays(tmp_path / "in", [str(n) for n in range(101)])
    words = ("arrays", "--dir", folder, "--out", tmp_path / "out", "--corpus", corpus)
    refused("(train 100.0%, val 0.0%, test 0.0%); none of 101.jpg, 102.jpg.", *words)
    refused("accept these with --min-matched 0, and train with --data.missing skip", *words)
    assert not (tmp_path / "out" / "manifest.json").exists()
    out = ingested(*words, "--min-matched", 0)
    assert "features of 98 of 100 images" in out
    assert "--aggregator gpo --data.missing skip  # train a model without what has no features" in out
    assert "ids with captions only: 2 such as 101.jpg, 102.jpg, all in" in out
    assert "ids with features only: 3 such as 0, 1, 2, all in" in out
    listed = json.loads((tmp_path / "out" / "unmatched.json").read_text())
    assert listed == {"captions only": ["101.jpg", "102.jpg"], "features only": ["0", "1", "2"]}


def test_one_percent_and_unused_splits_may_lack_features(tmp_path):
    items = [Item(id=str(n), split="train", captions=("a",)) for n in range(100)]
    write_corpus(tmp_path / "corpus", [*items, Item(id="a", split="dev2", captions=("a",))], source={})
    words = ("arrays", "--dir", arrays(tmp_path / "in", list(map(str, range(1, 100)))))
    words = (*words, "--corpus", tmp_path / "corpus", "--out", tmp_path / "out")
    assert "features of 99 of 101 images" in ingested(*words)
    write_corpus(tmp_path / "corpus", [replace(items[0], id="b"), *items], source={})
    refused("(train 98.0%)", *words[:-1], tmp_path / "other")


def test_ambiguous_id_matches_are_refused(tmp_path):
    paths = ["a/1.jpg", "b/1.jpg", "c/1.jpg", "c/1.png", "d/1.jpg"]
    corpus = corpus_of_paths(tmp_path, paths)
    folder = arrays(tmp_path / "in", ["a/1", "b/1", "c/1", "d/1"])
    words = ("arrays", "--dir", folder, "--out", tmp_path / "out", "--corpus", corpus)
    refused("by equal but for endings such as .jpg (id), 'c/1' is of several images or videos; give", *words)
    corpus = corpus_of_paths(tmp_path, [f"{n}.jpg" for n in TEN])
    folder = arrays(tmp_path / "two", [*(f"x/{n}" for n in TEN), "y/3"])
    words = ("arrays", "--dir", folder, "--out", tmp_path / "two", "--corpus", corpus)
    refused(
        "y/3.npy: by equal base names but for endings such as .jpg (id), 'y/3' and 'x/3' are of the same one; give",
        *words,
    )


def test_verify_detects_damaged_shard(tmp_path):
    ingested("arrays", "--dir", arrays(tmp_path / "in", TEN), "--out", tmp_path / "out")
    out = ingested("verify", "--store", tmp_path / "out")
    assert "good: 10 sets, 20 vectors of 4 x float16" in out
    shard = tmp_path / "out" / "shard-00000.arrow"
    flip(shard, 200)
    refused(f"error: {shard}: its ids, offsets or checks changed", "verify", "--store", tmp_path / "out")


def test_suggested_recipe_depends_on_folder_names(tmp_path, monkeypatch):
    """Ingest JSON of COCO and MSR-VTT and features, without images or videos, to the recipes' folders."""
    monkeypatch.setenv("POLYPOOL_HOME", str(tmp_path))
    data, splits = tmp_path / "data", ["train"] * 4 + ["val"] * 2 + ["test"] * 2
    json_file = write_karpathy(tmp_path, [karpathy_entry(n, split=of) for n, of in enumerate(splits)])
    out = ingested("karpathy", "--json", json_file, "--out", data / "coco")
    assert "8 items (train 4, val 2, test 2)" in out
    assert "polypool ingest hdf5 --file " in out
    features = arrays(tmp_path / "in", [str(1000 + n) for n in range(8)])
    to = ("--corpus", data / "coco", "--out")
    assert "train coco_region_bigru " in ingested("arrays", "--dir", features, *to, data / "coco" / "regions")
    assert "train image_text --corpus" in ingested("arrays", "--dir", features, *to, data / "coco" / "mine")
    of = {"train": "train", "val": "validate", "test": "test"}
    videos = [msrvtt_video(n, of[split]) for n, split in enumerate(splits)]
    path = write_msrvtt(tmp_path / "a.json", videos, [msrvtt_sentence(n, n) for n in range(8)])
    assert "train video_text --corpus" in ingested("msrvtt", "--json", path, "--out", data / "clips")
