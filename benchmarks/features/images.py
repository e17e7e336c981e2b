"""Extraction from images by a vision transformer against a plain loop over the same files and the same model."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image

from benchmarks.measure import Measurement, Scale, Size, by_turns, elapsed
from polypool.infra.ray.session import local_cores, ray_session
from polypool.pipelines.data.extraction.extractors import ImageExtractor
from polypool.pipelines.data.extraction.workers import stream


@dataclass(frozen=True, kw_only=True)
class ImageSize(Size):
    """There are `images` of 640 x 480, described in batches of `batch` by a model of the size of DINOv2-S."""

    tiny: ClassVar = {"images": 3, "batch": 2, "rounds": 1, "width": 8, "layers": 1, "heads": 2, "pixels": 28}
    images: int = 96
    batch: int = 16
    width: int = 384
    layers: int = 12
    heads: int = 6
    pixels: int = 224
    rounds: int = 3


def images(scale: Scale = "full") -> Iterator[Measurement]:
    """Measure the images a second that are opened, described and handed over."""
    size = ImageSize.of(scale)
    with tempfile.TemporaryDirectory() as name, ray_session(cpus=local_cores()):
        folder = Path(name)
        model, paths = save_model(folder / "model", size), write_images(folder, size.images)
        batches = [
            {"ids": part, "paths": part, "digests": [""] * len(part)}
            for part in (paths[n : n + size.batch] for n in range(0, len(paths), size.batch))
        ]
        measured = (
            f"{size.images} photographs of 640 x 480 through a ViT of 14-pixel patches, {size.width} wide"
        )
        for precision, options in (("float32", ""), ("bfloat16", ", bfloat16=True")):
            backbone = f"dinov2(name='{model}'{options})"
            sides = by_turns(
                lambda _, backbone=backbone: len(paths) / elapsed(lambda: ours(batches, backbone)),
                lambda _: len(paths) / elapsed(lambda: plain(paths, model)),
                rounds=size.rounds,
            )
            yield Measurement(
                name=f"images in {precision} / plain loop",
                measured=measured,
                unit="/s",
                note=f"Ours: {local_cores()} workers of Ray, their start included, {precision}. "
                "Reference: one process, image after image, float32, torch on all cores.",
                **sides.numbers(),
            )


def ours(batches: list[dict[str, Any]], backbone: str) -> None:
    """Describe all images as `extract` does."""
    rows = stream(batches, extractor=ImageExtractor, options={"backbone": backbone}, gpu=False, block=1)
    assert not any(row["why"] for row in rows)


def plain(paths: list[str], model: str) -> None:
    """Describe them as people do who have no more than transformers."""
    from transformers import AutoImageProcessor, AutoModel

    processor, network = AutoImageProcessor.from_pretrained(model), AutoModel.from_pretrained(model).eval()
    with torch.inference_mode():
        deque((network(**processor(Image.open(path), return_tensors="pt")) for path in paths), maxlen=0)


def save_model(folder: Path, size: ImageSize) -> str:
    """Save a DINOv2 of random weights with its preprocessing; return where."""
    from transformers import BitImageProcessorPil, Dinov2Config, Dinov2Model

    torch.manual_seed(0)
    Dinov2Model(
        Dinov2Config(
            hidden_size=size.width,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            image_size=size.pixels,
            patch_size=14,
        )
    ).save_pretrained(folder)
    edges = {"shortest_edge": size.pixels * 8 // 7}
    BitImageProcessorPil(size=edges, crop_size={"height": size.pixels, "width": size.pixels}).save_pretrained(
        folder
    )
    return str(folder)


def write_images(folder: Path, count: int) -> list[str]:
    """Write JPEGs of 640 x 480 that look like nothing; return their paths."""
    paths = [folder / f"{number}.jpg" for number in range(count)]
    for number, path in enumerate(paths):
        small_HW3 = np.random.default_rng(number).integers(0, 256, (30, 40, 3), np.uint8)
        Image.fromarray(small_HW3).resize((640, 480), Image.Resampling.BICUBIC).save(path, quality=90)
    return [str(path) for path in paths]
