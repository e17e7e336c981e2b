"""Extraction from videos against a plain loop with the same backbone, and decoding by PyAV against decord."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image

from benchmarks.measure import Measurement, Scale, Size, by_turns, elapsed, processor_seconds
from polypool.encoders.backbones import Backbone, build_backbone
from polypool.infra.ray.session import local_cores, ray_session
from polypool.infra.video import choose_decoder, choose_frames, frames
from polypool.pipelines.data.extraction.extractors import VideoExtractor, VideoOptions, Videos
from polypool.pipelines.data.extraction.workers import stream

BACKBONE = "cells(grid=3)"
FRAMES, FEW = 20, 12
CODECS = {"libx264": "mp4", "libx265": "mp4", "libvpx-vp9": "webm", "mpeg4": "avi"}
"""Encoders of what both decoders read, and the containers that it goes into."""
_FAST = {
    "libx265": {"x265-params": "log-level=none"},
    "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8"},
}


@dataclass(frozen=True, kw_only=True)
class VideoSize(Size):
    """How much there is: `clips` files of `length` frames of 320 x 240, each read `times` times in a round."""

    tiny: ClassVar = {"clips": 2, "length": 24, "times": 1, "rounds": 1}
    clips: int = 10
    length: int = 300
    times: int = 15


def videos(scale: Scale = "full") -> list[Measurement]:
    """Measure the frames a second that are decoded and described."""
    size = VideoSize.of(scale)
    backbone = build_backbone(BACKBONE)
    plan = Videos.plan(backbone, VideoOptions(frames=FRAMES), batch=16)
    with tempfile.TemporaryDirectory() as name, ray_session(cpus=local_cores()):
        paths = [
            write_clip(Path(name) / f"{n}.mp4", size.length, seed=n) for n in range(size.clips)
        ] * size.times
        batches = [
            {"ids": part, "paths": part, "digests": [""] * len(part)}
            for part in (paths[n : n + 8] for n in range(0, len(paths), 8))
        ]
        options = {"backbone": BACKBONE, "videos": plan}

        def ours() -> None:
            rows = stream(batches, extractor=VideoExtractor, options=options, gpu=False, block=1)
            assert not any(row["why"] for row in rows)

        def reference() -> None:
            deque((describe(path, backbone) for path in paths), maxlen=0)

        total = len(paths) * min(FRAMES, size.length)
        sides = by_turns(
            lambda number: total / elapsed(ours),
            lambda number: total / elapsed(reference),
            rounds=size.rounds,
        )
    return [
        Measurement(
            name="videos / loop over PyAV",
            measured=f"frames of {len(paths)} clips of {size.length} x 320 x 240, {FRAMES} each, through {BACKBONE}",
            unit="/s",
            note=f"Ours: {local_cores()} workers of Ray, their start included, with {choose_decoder()} "
            "in processes of their own. Reference: one process.",
            **sides.numbers(),
        )
    ]


@dataclass(frozen=True, kw_only=True)
class DecoderSize(Size):
    """How much there is: clips of so many `lengths` of frames, each read `times` times in a round."""

    tiny: ClassVar = {"lengths": (24,), "times": 1, "rounds": 1}
    lengths: tuple[int, ...] = (250, 3000)
    times: int = 4
    rounds: int = 3


def decoders(scale: Scale = "full") -> Iterator[Measurement]:
    """Measure the frames that either decoder finds in a second of processor time, in clips of several codecs.

    Yields:
        a row for each codec and length; none where decord is not installed.
    """
    size = DecoderSize.of(scale)
    if find_spec("decord") is None:
        return
    with tempfile.TemporaryDirectory() as name:
        for (codec, suffix), length in product(CODECS.items(), size.lengths):
            path = write_clip(Path(name) / f"{codec}{length}.{suffix}", length, seed=0, codec=codec)

            def speed(decoder: str, path: str = path) -> float:
                read = lambda: deque(frames(path, at_most=FEW, decoder=decoder), maxlen=0)  # noqa: E731
                return size.times * FEW / processor_seconds(lambda: [read() for _ in range(size.times)])

            speed("av"), speed("decord")  # each is imported once
            sides = by_turns(lambda _: speed("av"), lambda _: speed("decord"), rounds=size.rounds)
            yield Measurement(
                name=f"{codec} of {length} frames / decord",
                measured=f"{FEW} of them, 320 x 240, in a {suffix} file",
                unit="/s",
                note="Ours: PyAV, from key frame to key frame. Both: one thread, a second of the processor.",
                **sides.numbers(),
            )


def describe(path: str, backbone: Backbone) -> Sequence[np.ndarray]:
    """Return the mean of each frame that is wanted, by a plain loop."""
    import av

    with av.open(path) as container:
        count = container.streams.video[0].frames
        wanted = set(choose_frames(count, FRAMES).tolist())
        decoded = enumerate(container.decode(video=0))
        images = [Image.fromarray(frame.to_ndarray(format="rgb24")) for n, frame in decoded if n in wanted]
    return [x_ND.mean(axis=0) for x_ND in backbone(images)]


def write_clip(path: Path, length: int, *, seed: int, codec: str = "libx264") -> str:
    """Write a clip over a made-up landscape that the camera moves across; return its path."""
    import av

    rng = np.random.default_rng(seed)
    land = rng.integers(0, 256, (60, 60, 3), np.uint8).repeat(16, axis=0).repeat(16, axis=1)
    with av.open(str(path), "w") as container:
        video = container.add_stream(codec, rate=25, options=_FAST.get(codec, {}))
        video.width, video.height, video.pix_fmt = 320, 240, "yuv420p"
        for n in range(length):
            x_HW3 = np.ascontiguousarray(land[n % 720 :, 2 * n % 600 :][:240, :320])
            container.mux(video.encode(av.VideoFrame.from_ndarray(x_HW3, format="rgb24")))
        container.mux(video.encode())
    return str(path)
