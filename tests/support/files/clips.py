"""Clips that are made up: pixels that tell frames apart, in files of many kinds, good and bad."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable
from pathlib import Path

import av
import numpy as np
from PIL import Image

from encoders.backbones.base import Backbone

HEIGHT, WIDTH = 48, 64


def pictures(count: int, *, seed: int = 0) -> np.ndarray:
    """Return frames `(T, H, W, 3)`: coloured patches that no two frames share."""
    rng = np.random.default_rng(seed)
    patches = rng.integers(0, 256, (count, HEIGHT // 16, WIDTH // 16, 3), np.uint8)
    return patches.repeat(16, axis=1).repeat(16, axis=2)


def write_clip(
    path: Path, count: int, *, codec: str = "libx264", seed: int = 0, index_first: bool = False
) -> Path:
    """Write a clip of `count` frames, a key frame among every twelve.

    Args:
        path: its suffix names the container.
        count: frames.
        codec: an encoder of libavcodec.
        seed: of the pictures.
        index_first: put the index of an MP4 before its frames, so that a file that was cut off can be opened.
    """
    options = {"movflags": "faststart"} if index_first else {}
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec, rate=8)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.gop_size = 12
        for x_HW3 in pictures(count, seed=seed):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(x_HW3, format="rgb24")))
        container.mux(stream.encode())
    return path


def write_sound(path: Path) -> Path:
    """Write a second of silence."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def turned(clip: Path, path: Path) -> Path:
    """Copy an MP4 and have its header ask for a quarter turn, as of a telephone that was held upright."""
    data = bytearray(clip.read_bytes())
    matrix = data.index(b"tkhd") + 4 + 40  # version, times, ids, duration, layer, volume
    one = 1 << 16
    data[matrix : matrix + 36] = struct.pack(">9i", 0, one, 0, -one, 0, 0, HEIGHT * one, 0, 1 << 30)
    path.write_bytes(data)
    return path


def headless(clip: Path, path: Path) -> Path:
    """Copy a clip without its first frame, on which the eleven that follow build."""
    with av.open(str(clip)) as source, av.open(str(path), "w") as target:
        stream = source.streams.video[0]
        packets = [packet for packet in source.demux(stream) if packet.size]
        copy = target.add_stream_from_template(stream)
        for packet in packets[1:]:
            packet.stream = copy
            target.mux(packet)
    return path


def write_bad(folder: Path) -> dict[str, str]:
    """Write one file of every bad kind; return their names, and words of the reason that each should get."""
    whole = write_clip(folder / "whole.mp4", 60, index_first=True).read_bytes()
    (folder / "empty.mp4").touch()
    (folder / "text.mp4").write_text("<html>404</html>")
    Image.fromarray(pictures(1)[0]).save(folder / "picture.mp4", format="JPEG")
    (folder / "cut.mp4").write_bytes(whole[: len(whole) * 2 // 3])
    (folder / "no_index.mp4").write_bytes(whole[: whole.index(b"moov")])
    write_sound(folder / "sound.mp4")
    headless(folder / "whole.mp4", folder / "headless.mp4")
    return {
        "gone.mp4": "no such file",
        "empty.mp4": "an empty file",
        "text.mp4": "does not decode",
        "picture.mp4": "a picture",
        "cut.mp4": "does not decode",
        "no_index.mp4": "does not decode",
        "sound.mp4": "no video",
        "headless.mp4": "fewer frames than the file says",
    }


class Whole(Backbone):
    """A backbone of whole videos: the mean colour of every frame, and its number."""

    reads = "video"
    dim = 4

    def describe(self) -> dict[str, object]:
        return {"backbone": "whole"}

    def __call__(self, frames: Iterable[Image.Image]) -> np.ndarray:
        rows = [[*np.asarray(frame).mean(axis=(0, 1)), number] for number, frame in enumerate(frames)]
        return np.array(rows, np.float32)


class Loose:
    """What a backbone has, without saying that it is one."""

    dim, describe = 4, Whole.describe


SERVER = """
import os, sys, time
import av
import infra.video.process as process

real = process.frames

def frames(path, *, at_most, decoder):
    if "crash" in path:
        os.abort()
    for number, frame in enumerate(real(path, at_most=at_most, decoder=decoder)):
        if "hang" in path and number == 2:
            time.sleep(600)
        yield frame

process.frames = frames
process._SPARE = float(sys.argv[3])
process.serve(sys.stdin.buffer, sys.stdout.buffer, decoder=sys.argv[1], timeout=float(sys.argv[2]))
"""


def server(*, timeout: float = 600.0, spare: float = 600.0) -> list[str]:
    """Return a program that decodes, but hangs after two frames of `*hang*` and crashes on `*crash*`."""
    return [sys.executable, "-P", "-c", SERVER, "av", str(timeout), str(spare)]
