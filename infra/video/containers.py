"""Containers of video files: formats from a list, read from that file alone, and the positions of their frames."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

import numpy as np

from polypool.infra.files import why_no_file
from polypool.infra.pictures.opening import still_picture

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.stream import VideoStream

CONTAINERS = {
    "mov": "MP4",
    "matroska": "WebM",
    "avi": "AVI",
    "mpegts": "MPEG-TS",
    "mpeg": "MPEG",
    "flv": "FLV",
    "asf": "WMV",
    "ogg": "Ogg",
    "gif": "GIF",
}
"""Formats that are read: FFmpeg's names and the usual ones. Never playlists and scripts, which name other files."""
MAX_PIXELS = 1 << 25
"""Pixels of a frame: those of 8K."""
FEWER = "fewer frames than the file says, which is cut or damaged"
DAMAGED = "damaged: frames in it do not decode"
_OPTIONS = {"protocol_whitelist": "file", "format_whitelist": ",".join(CONTAINERS)}
# units of these codecs have at most two zero bytes in a row (H.264, section 7.4.1), their lengths at most four, where
# such stand before them, as `extradata` that begins with 1 says; elsewhere any number of zeros may stand between units
_COUNTED, _ZEROS = ("h264", "hevc"), bytes(8)
_SEGMENT = b"\x18\x53\x80\x67"
_SEEKING = ("mov", "matroska", "avi")  # containers with an index of the places where decoding can begin


class BadVideo(Exception):
    """A video without usable frames; the message says why, in the same words for every such video."""


@contextmanager
def opened(path: str, **options: str) -> Iterator[tuple[InputContainer, VideoStream]]:
    """Open a video file, by FFmpeg's options, and the stream that a player would show; raises `BadVideo`."""
    import av

    if why := why_no_file(path):
        raise BadVideo(why)
    try:
        container = av.open(f"file:{path}", options=_OPTIONS | options)
    except av.ArgumentError as error:  # of a kind that is not in the list
        if still_picture(path):
            raise BadVideo("a picture, not a video") from error
        raise BadVideo(f"does not decode as a video: none of {', '.join(CONTAINERS.values())}") from error
    except av.FFmpegError as error:
        if isinstance(error, MemoryError):
            raise
        raise BadVideo("does not decode as a video: no video file, or one that is cut or damaged") from error
    with container:
        stream = cast("VideoStream | None", container.streams.best("video"))
        if stream is None:
            raise BadVideo("no video in it, only other streams")
        width, height = stream.codec_context.width, stream.codec_context.height
        if width * height > MAX_PIXELS:
            raise BadVideo(f"frames of more than {MAX_PIXELS:,} pixels; make it smaller")
        # one thread, as other videos are decoded on the other cores
        stream.thread_type, stream.codec_context.thread_count = "NONE", 1
        stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}
        yield container, stream


SECONDS = "seconds"
"""The column of a store with the time of each element's frame, after the first frame of its video."""


class Frame(NamedTuple):
    """A frame of a video.

    Attributes:
        x_HW3: uint8, RGB, upright.
        seconds: when it is shown, after the first.
    """

    x_HW3: np.ndarray
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The frames of a video, as its container lists them, in the order of display.

    Attributes:
        count: how many.
        times: of display, in the stream's unit, ascending; None where the container has none.
        keys: numbers of those at which decoding can begin, ascending; at least the first.
        codec: FFmpeg's name of it, such as `h264`.
        unit: seconds of the stream's unit; of a frame, where the container has no times.
        indexed: whether the container says at which times and places decoding can begin.
    """

    count: int
    times: tuple[int, ...] | None
    keys: tuple[int, ...]
    codec: str
    unit: float
    indexed: bool = False

    @classmethod
    def of(cls, path: str) -> Timeline:
        """Read a whole file without decoding; raises `BadVideo`."""
        with opened(path) as (container, stream):
            codec = stream.codec_context.codec.canonical_name
            packets = [_Packet.of(each, codec) for each in container.demux(stream) if each.size]
            extra = stream.codec_context.extradata or b""
            zeroed = codec in _COUNTED and extra[:1] == b"\1" and any(packet.zeroed for packet in packets)
            seeks = any(name in _SEEKING for name in container.format.name.split(","))
            fewer = "avi" in container.format.name and _cut_avi(path)
            # the header of an AVI file counts frames that its writer dropped, too, which have no bytes
            fewer |= len(packets) < sum(entry.size > 0 for entry in stream.index_entries)
            fewer |= "matroska" in container.format.name and _cut_matroska(path)
            unit, rate = stream.time_base, stream.average_rate or stream.guessed_rate
        if fewer or any(packet.corrupt for packet in packets) or (packets and not packets[0].key):
            raise BadVideo(FEWER)
        if zeroed:
            raise BadVideo(DAMAGED)
        shown = [packet for packet in packets if packet.shown]
        key_of = {packet.time: packet.key for packet in shown if packet.time is not None}
        if len(key_of) < len(shown):  # a time is missing, or two frames have the same one
            frame = float(1 / rate) if rate else 0.0
            return cls(count=len(shown), times=None, keys=(0,), codec=codec, unit=frame)
        times = sorted(key_of)
        keys = {0, *(number for number, time in enumerate(times) if seeks and key_of[time])}
        return cls(
            count=len(shown),
            times=tuple(times),
            keys=tuple(sorted(keys)),
            codec=codec,
            unit=float(unit or 0),
            indexed=seeks,
        )

    def seconds(self, number: int) -> float:
        """Return the time of a frame, in seconds after the first."""
        return self.unit * (number if self.times is None else self.times[number] - self.times[0])

    def begin(self, number: int) -> int:
        """Return the last frame, up to this one, at which decoding can begin."""
        return self.keys[bisect_right(self.keys, number) - 1]


def _cut_avi(path: str) -> bool:
    """Whether an AVI file ends before its header says."""
    with open(path, "rb") as file:
        file.seek(4)
        return 8 + int.from_bytes(file.read(4), "little") > os.fstat(file.fileno()).st_size


def _cut_matroska(path: str) -> bool:
    """Whether a Matroska or WebM file is cut, which FFmpeg takes for the end of the video."""
    with open(path, "rb") as file:
        file.seek(4)  # the mark of the header, which FFmpeg has found
        file.seek(_size(file) or 0, os.SEEK_CUR)
        if file.read(4) != _SEGMENT or (size := _size(file)) is None:
            return False
        return file.tell() + size > os.fstat(file.fileno()).st_size


def _size(file: BinaryIO) -> int | None:
    """Read a number of Matroska (RFC 8794, section 4): zeros before the first one count the bytes that follow.

    Returns:
        the number; None where it is all ones, for unknown.
    """
    (first,) = file.read(1) or b"\xff"
    more = 8 - first.bit_length()
    number = int.from_bytes(bytes([first & (0x7F >> more)]) + file.read(more))
    return None if number == (1 << 7 * (more + 1)) - 1 else number


@dataclass(frozen=True)
class _Packet:
    time: int | None
    key: bool
    shown: bool
    corrupt: bool
    zeroed: bool

    @classmethod
    def of(cls, packet: Packet, codec: str) -> _Packet:
        # VP8 has reference frames that are not shown, which a bit marks (RFC 6386, section 9.1)
        hidden = codec == "vp8" and not bytes(packet)[0] & 0x10
        # AVI knows the order of decoding alone, and times that differ from it are guessed
        guessed = packet.stream.container.format.name == "avi" and packet.pts != packet.dts
        time = None if guessed else packet.pts
        shown, zeroed = not (hidden or packet.is_discard), _ZEROS in bytes(packet).rstrip(b"\0")
        return cls(time, packet.is_keyframe, shown, packet.is_corrupt, zeroed)
