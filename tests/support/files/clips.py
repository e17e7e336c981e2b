"""Synthetic clips with distinct frames, in valid and damaged files of many formats."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

import av
import numpy as np
from PIL import Image

from polypool.encoders.backbones import Backbone
from polypool.infra.errors import InputError
from polypool.infra.video import DECODERS, choose_decoder, frames

HEIGHT, WIDTH = 48, 64


def installed(name: str) -> bool:
    try:
        return choose_decoder(name) == name
    except InputError:
        return False


HERE = [name for name in DECODERS if installed(name)]


def decoded(path: Path, **how) -> np.ndarray:
    """Return frames of a clip `(T, H, W, 3)`, decoded in this process; `how` goes to `frames`."""
    return np.stack([frame.x_HW3 for frame in frames(str(path), **how)])


def pictures(count: int, *, seed: int = 0) -> np.ndarray:
    """Return frames `(T, H, W, 3)`: coloured patches, different in each frame."""
    rng = np.random.default_rng(seed)
    patches = rng.integers(0, 256, (count, HEIGHT // 16, WIDTH // 16, 3), np.uint8)
    return patches.repeat(16, axis=1).repeat(16, axis=2)


def panned(count: int) -> np.ndarray:
    """Return frames `(T, H, W, 3)` of a moving picture, so that encoded frames depend on each other."""
    land = pictures(1)[0].astype(int)
    moved = np.stack([np.roll(land, 3 * n, axis=1) + n % 7 for n in range(count)])
    return moved.clip(0, 255).astype(np.uint8)


def write_clip(
    path: Path,
    count: int,
    *,
    codec: str = "libx264",
    seed: int = 0,
    index_first: bool = False,
    scale: int = 1,
    pan: bool = False,
    times: Iterable[int] | None = None,
) -> Path:
    """Write a clip of `count` frames, with a key frame every 12 frames.

    Args:
        path: its suffix names the container.
        count: number of frames.
        codec: an encoder of libavcodec.
        seed: random seed of the pictures.
        index_first: put the index of an MP4 before its frames, so that a truncated file can be opened.
        scale: enlarge each pixel to `scale` x `scale` pixels.
        pan: show a moving picture.
        times: timestamps of the frames, in eighths of a second; an AVI file has an empty chunk for each gap.
    """
    options = {"movflags": "faststart"} if index_first else {}
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec, rate=8)
        stream.width, stream.height, stream.pix_fmt = scale * WIDTH, scale * HEIGHT, "yuv420p"
        stream.gop_size = 12
        shown = panned(count) if pan else pictures(count, seed=seed)
        for time, x_HW3 in zip(range(count) if times is None else times, shown, strict=True):
            x_HW3 = x_HW3.repeat(scale, axis=0).repeat(scale, axis=1)
            frame = av.VideoFrame.from_ndarray(x_HW3, format="rgb24")
            frame.pts = None if times is None else time
            container.mux(stream.encode(frame))
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
    """Copy an MP4 with a rotation by 90 degrees in its header, as from a phone held upright."""
    data = bytearray(clip.read_bytes())
    matrix = data.index(b"tkhd") + 4 + 40  # version, times, ids, duration, layer, volume
    one = 1 << 16
    data[matrix : matrix + 36] = struct.pack(">9i", 0, one, 0, -one, 0, 0, HEIGHT * one, 0, 1 << 30)
    path.write_bytes(data)
    return path


def headless(clip: Path, path: Path) -> Path:
    """Copy a clip without its first frame, on which the next eleven depend."""
    with av.open(str(clip)) as source, av.open(str(path), "w") as target:
        stream = source.streams.video[0]
        packets = [packet for packet in source.demux(stream) if packet.size]
        copy = target.add_stream_from_template(stream)
        for packet in packets[1:]:
            packet.stream = copy
            target.mux(packet)
    return path


def remuxed(clip: Path, path: Path, *, keys: bool = False, shift: int = 0, hide: int | None = None) -> Path:
    """Copy the encoded frames of a clip into another file.

    Args:
        clip: a clip of 8 frames per second.
        path: its suffix names the container.
        keys: wrongly mark every frame as a key frame.
        shift: subtract this many frames from all timestamps, so that the first ones precede the start.
        hide: number of a VP8 frame to mark as not shown, though others depend on it.
    """
    with (
        av.open(str(clip)) as source,
        av.open(str(path), "w", options={"avoid_negative_ts": "disabled"}) as target,
    ):
        stream = source.streams.video[0]
        copy = target.add_stream_from_template(stream)
        for number, packet in enumerate(each for each in source.demux(stream) if each.size):
            if number == hide:
                data = bytearray(bytes(packet))
                data[0] &= ~0x10
                packet.update(bytes(data))
            earlier = round(shift / 8 / packet.time_base)
            packet.pts -= earlier
            packet.dts = None if packet.dts is None else packet.dts - earlier
            packet.is_keyframe |= keys
            packet.stream = copy
            target.mux(packet)
    return path


def write_lists(folder: Path, clip: Path) -> list[Path]:
    """Write files that refer to a video instead of containing one: playlists, a script, a manifest, an SDP file."""
    texts = {
        "hls.mp4": f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{clip}\n#EXT-X-ENDLIST\n",
        "list.m3u8": f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{clip.name}\n#EXT-X-ENDLIST\n",
        "concat.mp4": f"ffconcat version 1.0\nfile '{clip.name}'\n",
        "dash.mpd": '<?xml version="1.0"?>\n<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" '
        'profiles="urn:mpeg:dash:profile:isoff-on-demand:2011" mediaPresentationDuration="PT1S"><Period>'
        '<AdaptationSet mimeType="video/mp4"><Representation id="1" bandwidth="1">'
        f"<BaseURL>{clip.name}</BaseURL></Representation></AdaptationSet></Period></MPD>\n",
        "stream.sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\n"
        "m=video 5004 RTP/AVP 96\na=rtpmap:96 H264/90000\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    return [folder / name for name in texts]


def write_bad(folder: Path) -> dict[str, str]:
    """Write one bad file of every kind; return their names, each with a part of the expected reason."""
    whole = write_clip(folder / "whole.mp4", 60, index_first=True).read_bytes()
    (folder / "empty.mp4").touch()
    (folder / "text.mp4").write_text("<html>404</html>")
    Image.fromarray(pictures(1)[0]).save(folder / "picture.mp4", format="JPEG")
    (folder / "cut.mp4").write_bytes(whole[: len(whole) * 2 // 3])
    (folder / "no_index.mp4").write_bytes(whole[: whole.index(b"moov")])
    write_sound(folder / "sound.mp4")
    headless(folder / "whole.mp4", folder / "headless.mp4")
    os.mkfifo(folder / "pipe.mp4")
    (folder / "folder.mp4").mkdir()
    write_lists(folder, folder / "whole.mp4")
    for name, codec in (("short.avi", "mpeg4"), ("half.webm", "libvpx"), ("ended.mkv", "libx264")):
        whole = write_clip(folder / name, 60, codec=codec).read_bytes()
        (folder / name).write_bytes(whole[: len(whole) * 2 // 3])
    return {
        "gone.mp4": "no such file",
        "empty.mp4": "an empty file",
        "text.mp4": "does not decode",
        "picture.mp4": "a picture",
        "cut.mp4": "fewer frames than the file says",
        "short.avi": "fewer frames than the file says",
        "half.webm": "fewer frames than the file says",
        "ended.mkv": "fewer frames than the file says",
        "no_index.mp4": "does not decode",
        "pipe.mp4": "a pipe, a device or a socket",
        "folder.mp4": "a folder",
        "hls.mp4": "does not decode as a video",
        "list.m3u8": "does not decode as a video: none of MP4",
        "concat.mp4": "does not decode as a video: none of MP4",
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


class Uneven(Backbone):
    """A backbone that returns one to three vectors per image, as a detector does."""

    dim = 1

    def describe(self) -> dict[str, object]:
        return {"backbone": "uneven"}

    def __call__(self, images: list[Image.Image]) -> list[np.ndarray]:
        counts = [1 + round(np.asarray(image).mean()) % 3 for image in images]
        return [np.full((count, 1), count, np.float32) for count in counts]


class Loose:
    """The methods of a backbone, without its base class."""

    dim, describe = 4, Whole.describe


SERVER = """
import os, sys, time
import av
import polypool.infra.video as process

real = process.frames

def frames(path, *, decoder, **which):
    if "crash" in path:
        os.abort()
    for number, frame in enumerate(real(path, decoder=decoder, **which)):
        if "hang" in path and number == 2:
            time.sleep(600)
        yield frame

process.frames = frames
process._SPARE = float(sys.argv[3])
decoder, timeout, memory = sys.argv[1], float(sys.argv[2]), int(sys.argv[4])
process.serve(process.socket.socket(fileno=int(sys.argv[5])), decoder=decoder, timeout=timeout, memory=memory)
"""


def server(*, timeout: float = 600.0, spare: float = 600.0, memory: int = 4 << 30) -> list[str]:
    """Return a program that decodes, but hangs after two frames of `*hang*` or crashes on `*crash*`."""
    return [sys.executable, "-P", "-c", SERVER, "av", str(timeout), str(spare), str(memory)]
