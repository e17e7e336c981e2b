"""Extraction from videos against a plain loop: PyAV and the same backbone, one video after another."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image

from encoders.backbones.base import Backbone, build_backbone
from infra.ray.session import local_cores, ray_session
from infra.video.decoding import choose_decoder
from infra.video.sampling import choose_frames
from pipelines.benchmarks.measure import Measurement, Size, by_turns, seconds
from pipelines.extraction.images import stream
from pipelines.extraction.videos import VideoExtractor, VideoOptions, Videos

BACKBONE = "cells(grid=3)"
FRAMES = 20


@dataclass(frozen=True, kw_only=True)
class VideoSize(Size):
    """How much there is: `clips` files of `length` frames of 320 x 240, each read `times` times in a round."""

    quick: ClassVar = {"clips": 2, "length": 24, "times": 1, "rounds": 1}
    clips: int = 10
    length: int = 300
    times: int = 15


def videos(*, quick: bool = False) -> list[Measurement]:
    """Measure the frames a second that are decoded and described."""
    size = VideoSize.of(quick=quick)
    backbone = build_backbone(BACKBONE)
    plan = Videos.plan(backbone, VideoOptions(frames=FRAMES), batch=16)
    with tempfile.TemporaryDirectory() as name, ray_session(cpus=local_cores()):
        paths = [
            write_clip(Path(name) / f"{n}.mp4", size.length, seed=n) for n in range(size.clips)
        ] * size.times
        batches = [
            {"ids": part, "paths": part} for part in (paths[n : n + 8] for n in range(0, len(paths), 8))
        ]
        options = {"backbone": BACKBONE, "videos": plan}

        def ours() -> None:
            rows = stream(batches, extractor=VideoExtractor, options=options, gpu=False, block=1)
            assert not any(row["why"] for row in rows)

        def reference() -> None:
            deque((describe(path, backbone) for path in paths), maxlen=0)

        total = len(paths) * min(FRAMES, size.length)
        sides = by_turns(
            lambda number: total / seconds(ours),
            lambda number: total / seconds(reference),
            rounds=size.rounds,
        )
    return [
        Measurement(
            name="videos / loop over PyAV",
            measured=f"frames of {len(paths)} clips of {size.length} x 320 x 240, {FRAMES} each, through {BACKBONE}",
            unit="/s",
            note=f"Ours: Ray Data on {local_cores()} cores, the start of its actors included, with {choose_decoder()} "
            "in processes of their own. Reference: one process.",
            **sides.numbers(),
        )
    ]


def describe(path: str, backbone: Backbone) -> Sequence[np.ndarray]:
    """Return the mean of each frame that is wanted, by a plain loop."""
    import av

    with av.open(path) as container:
        count = container.streams.video[0].frames
        wanted = set(choose_frames(count, FRAMES).tolist())
        frames = enumerate(container.decode(video=0))
        images = [Image.fromarray(frame.to_ndarray(format="rgb24")) for n, frame in frames if n in wanted]
    return [x_ND.mean(axis=0) for x_ND in backbone(images)]


def write_clip(path: Path, length: int, *, seed: int) -> str:
    """Write a clip over a made-up landscape that the camera moves across; return its path."""
    import av

    rng = np.random.default_rng(seed)
    land = rng.integers(0, 256, (60, 60, 3), np.uint8).repeat(16, axis=0).repeat(16, axis=1)
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=25)
        video.width, video.height, video.pix_fmt = 320, 240, "yuv420p"
        for n in range(length):
            x_HW3 = np.ascontiguousarray(land[n : n + 240, 2 * n % 600 :][:, :320])
            container.mux(video.encode(av.VideoFrame.from_ndarray(x_HW3, format="rgb24")))
        container.mux(video.encode())
    return str(path)
