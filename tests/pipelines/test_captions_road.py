"""User workflow: own captions with one file per split, and features under other names."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from clips import write_clip
from fake_extractor import in_this_process
from PIL import Image
from verbs import called, ingested

from polypool.pipelines.recipes.arguments import read_run
from polypool.pipelines.training.train import prepare, start
from polypool.tasks.run import Run

SPLITS = {"train": range(6), "val": range(6, 8), "test": range(8, 10)}
COLORS = ("red", "green", "blue", "white", "black")


def split_files(folder: Path, column: str, path: str) -> list[str]:
    """Write a table per split with six captions per row; return the values of `--file`."""
    for split, numbers in SPLITS.items():
        rows = [
            {column: path.format(n), "captions": [f"{k} {COLORS[n % 5]} things" for k in range(6)]}
            for n in numbers
        ]
        (folder / f"{split}.json").write_text(json.dumps(rows))
    return [f"{split}={folder / split}.json" for split in SPLITS]


def pictures(folder: Path) -> Run:
    """Ingest photographs, and features with COCO's file names; return a run on them."""
    (folder / "photos").mkdir()
    (folder / "in").mkdir()
    for n in range(10):
        Image.new("RGB", (8, 8), COLORS[n % 5]).save(folder / "photos" / f"{n}.png")
        x_ND = np.eye(5, dtype=np.float32)[[n % 5] * 3] + np.arange(3, dtype=np.float32)[:, None] / 100
        np.save(folder / "in" / f"COCO_val2014_{n:012d}.npy", x_ND)
    corpus, features = folder / "mine", folder / "mine" / "features"
    ingested("table", "--file", *split_files(folder, "image", "photos/{}.png"), "--out", corpus)
    said = ingested("arrays", "--dir", folder / "in", "--corpus", corpus, "--out", features)
    assert "10 of 10 images or videos, found by equal numbers at the end" in said
    return run_on("image_text", corpus, features)


def videos(folder: Path) -> Run:
    """Ingest AVI clips with dropped frames and extract features; return a run on them."""
    (folder / "clips").mkdir()
    for n in range(10):
        write_clip(folder / "clips" / f"{n}.avi", 6, codec="mpeg4", seed=n % 5, times=[0, 1, 4, 5, 6, 9])
    corpus, features = folder / "mine", folder / "mine" / "cells"
    ingested("table", "--file", *split_files(folder, "video", "clips/{}.avi"), "--out", corpus)
    words = ("--corpus", corpus, "--video", "--backbone", "cells(grid=2)", "--out", features)
    with pytest.MonkeyPatch.context() as patch:
        in_this_process(patch)
        code, said, _ = called("extract", *words)
    assert (code, "10 videos, 60 vectors" in said) == (0, True), said
    return run_on("video_text", corpus, features)


def run_on(recipe: str, corpus: Path, features: Path) -> Run:
    words = ["--corpus", str(corpus), "--features", str(features), "--aggregator", "mean", "--no-figures"]
    return read_run(recipe, [*words, "--optim.epochs", "16", "--optim.batch", "12", "--optim.lr", "0.001"])


def test_unused_captions_are_counted(tmp_path, capsys):
    run = pictures(tmp_path)
    adapter = prepare(run)
    sizes = {split: len(adapter.data(split).texts) for split in SPLITS}
    assert sizes == {"train": 36, "val": 12, "test": 12}
    assert "not used" not in capsys.readouterr().out
    few = prepare(replace(run, data=replace(run.data, captions=5)))
    assert len(few.data("test").texts) == 10
    assert (
        "test: 2 of 12 captions are not used, those after the first 5 of their image"
        in capsys.readouterr().out
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pictures, videos])
def test_own_captions_workflow_from_files_to_search(kind, new_home):
    run = kind(new_home)
    run_id = start(run)
    word = COLORS[8 % 5]
    for words, found in (
        (("evaluate", run_id), "t2i/R1" if kind is pictures else "t2v/R1"),
        (("compare",), "mean"),
        (("search", run_id, f"3 {word} things"), "8."),
    ):
        code, out, err = called(*words)
        assert (code, found in out) == (0, True), (words, out, err)
    (first,) = [line for line in out.splitlines() if line.split()[:1] == ["1"]]
    assert f"/8.{'png' if kind is pictures else 'avi'}" in first
