"""Extraction from photographs by a ViT of DINOv2-S's size, including the start of workers, against a plain loop."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import polypool as pp
from benchmarks.side_by_side import compare, run
from polypool.infra.compute.device import best_device

WIDTHS = {True: (8, 1, 2, 28), False: (384, 12, 6, 224)}
"""Width, layers, heads and pixels of the model; the key is `quick`."""


def save_model(folder: Path, sizes: Sequence[int]) -> None:
    """Save a DINOv2 of random weights with its preprocessing."""
    from transformers import BitImageProcessorPil, Dinov2Config, Dinov2Model

    width, layers, heads, pixels = sizes
    config = Dinov2Config(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        image_size=pixels,
        patch_size=14,
    )
    Dinov2Model(config).save_pretrained(folder)
    crop = {"height": pixels, "width": pixels}
    BitImageProcessorPil(size={"shortest_edge": pixels * 8 // 7}, crop_size=crop).save_pretrained(folder)


def write_corpus(folder: Path, count: int) -> list[Path]:
    """Write a corpus of JPEGs of 640 x 480; return their paths."""
    paths = [folder / f"images/{number}.jpg" for number in range(count)]
    (folder / "images").mkdir(parents=True)
    for number, path in enumerate(paths):
        small_HW3 = np.random.default_rng(number).integers(0, 256, (30, 40, 3), np.uint8)
        Image.fromarray(small_HW3).resize((640, 480), Image.Resampling.BICUBIC).save(path, quality=90)
    items = (
        pp.Item(id=path.stem, split="train", captions=("a photograph",), path=path.name) for path in paths
    )
    pp.write_corpus(folder, items, source={"reader": "benchmark"}, images=folder / "images")
    return paths


def plain(paths: Sequence[Path], model: Path) -> None:
    """Encode images one after another with transformers only."""
    from transformers import AutoImageProcessor, AutoModel

    processor, device = AutoImageProcessor.from_pretrained(model), best_device()
    network = AutoModel.from_pretrained(model).eval().to(device)
    with torch.inference_mode():
        for path in paths:
            network(**processor(Image.open(path), return_tensors="pt").to(device))


def main(*, quick: bool = False) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, count = Path(name), 4 if quick else 192
        save_model(folder / "model", WIDTHS[quick])
        paths = write_corpus(folder / "corpus", count)

        def ours(_: int) -> float:
            started = time.perf_counter()
            pp.extract(folder / "corpus", out=folder / "out", backbone=f"dinov2(name='{folder / 'model'}')")
            took = time.perf_counter() - started
            shutil.rmtree(folder / "out")
            return count / took

        def theirs(_: int) -> float:
            started = time.perf_counter()
            plain(paths, folder / "model")
            return count / (time.perf_counter() - started)

        compare(
            f"extract / plain loop, {count} photographs", ours, theirs, rounds=1 if quick else 3, unit="/s"
        )


if __name__ == "__main__":
    run(main)
