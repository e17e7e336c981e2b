"""Frames of a video file, by PyAV or decord, which give the same ones.

Decoders crash, and hang until they are killed: they run in a process of their own, `infra.video.video_reader`.

PyAV seeks to places where decoding can begin, and finds each frame by its time of display; where the container has no
times, or wrong ones, frames are counted from the first. decord contains libraries of 2020: PyAV checks each file before
it, and decodes those of codecs and containers in which decord gives other frames.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np

from polypool.infra.errors import InputError, unknown
from polypool.infra.video.containers import DAMAGED, FEWER, BadVideo, Frame, Timeline, opened
from polypool.infra.video.sampling import sample_frames

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

_SEEK_FROM = 8  # frames; fewer are decoded rather than skipped by a seek
_DECORD = ("h264", "hevc", "vp8", "vp9", "mpeg4", "mpeg2video", "mpeg1video", "mjpeg")


def frames(path: str, *, every: int = 1, at_most: int | None = None, decoder: str = "av") -> Iterator[Frame]:
    """Yield frames of a video in order; others are neither converted nor kept.

    Args:
        path: the file.
        every: the stride, from the first frame on (`polypool.infra.video.sampling`).
        at_most: of these, evenly spaced ones where there are more; all where None.
        decoder: `av` or `decord`.

    Raises:
        BadVideo: there is no such file, it is no video, or it is damaged, cut off or without frames; the frames
            before the damage may have been yielded.
    """
    import av

    try:
        timeline = Timeline.of(path)
        if not timeline.count:
            raise BadVideo("no frames")
        chosen = sample_frames(timeline.count, every=every, at_most=at_most).tolist()
        for number, x_HW3 in zip(chosen, DECODERS[decoder](path, timeline, chosen), strict=True):
            yield Frame(x_HW3, timeline.seconds(number))
    except BadVideo:
        raise
    except (MemoryError, av.MemoryError) as error:
        raise BadVideo("decoding needs more memory than it is given") from error
    except Exception as error:  # decord raises RuntimeError and its own, PyAV OSError, ValueError and its own
        raise BadVideo(DAMAGED) from error


def choose_decoder(name: str = "av") -> str:
    """Return a decoder that this machine has.

    Raises:
        InputError: an unknown decoder, or one that does not import.
    """
    if name not in DECODERS:
        raise unknown("decoder", name, DECODERS)
    # in another process: these libraries may conflict with the ones that are loaded here
    if subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True).returncode:
        raise InputError(f"the decoder {name!r} does not import: pip install 'polypool[video]'")
    return name


def describe_decoder(name: str) -> str:
    """Return name and version of a decoder, `av 14.0.0`."""
    return f"{name} {version(name)}"


class _WrongTimes(Exception):
    """The frames do not come as the container says."""


def _by_av(path: str, timeline: Timeline, chosen: Sequence[int]) -> Iterator[np.ndarray]:
    from av.video.reformatter import VideoReformatter

    colours = VideoReformatter()  # one for all frames, as it prepares tables

    def upright(frame: VideoFrame) -> np.ndarray:
        if abs(frame.rotation) > 360:  # what FFmpeg makes of a matrix that is no rotation
            raise BadVideo(DAMAGED)
        x_HW3 = colours.reformat(frame, format="rgb24", threads=1).to_ndarray()
        return np.rot90(x_HW3, frame.rotation // 90 % 4)

    done = 0
    try:
        for frame in _sought(path, timeline, chosen):
            yield upright(frame)
            done += 1
    except _WrongTimes:
        yield from map(upright, _counted(path, chosen[done:]))


def _sought(path: str, timeline: Timeline, chosen: Sequence[int]) -> Iterator[VideoFrame]:
    """Yield frames, each found by its time; raises `_WrongTimes`."""
    import av

    if timeline.times is None:
        raise _WrongTimes
    number_of = {time: number for number, time in enumerate(timeline.times)}
    with opened(path) as (container, stream):
        decoded, last, jumped = container.decode(stream), -1, False
        for wanted in chosen:
            begin = timeline.begin(wanted)
            if jump := begin - last > _SEEK_FROM:
                container.seek(timeline.times[begin], stream=stream)
                decoded, jumped = container.decode(stream), True
            try:
                yield _found(decoded, wanted, after=None if jump else last, number_of=number_of)
            except (BadVideo, av.FFmpegError):
                if jumped:  # perhaps to a frame at which decoding cannot begin
                    raise _WrongTimes from None
                raise
            last = wanted


def _found(
    decoded: Iterator[VideoFrame], wanted: int, *, after: int | None, number_of: dict[int, int]
) -> VideoFrame:
    """Return the frame `wanted`; `after` is the number of the last decoded frame, None after a seek."""
    for frame in decoded:
        _check(frame)
        number = number_of.get(frame.pts, -1)
        in_turn = frame.key_frame if after is None else number == after + 1
        if not in_turn or not 0 <= number <= wanted:
            raise _WrongTimes
        if number == wanted:
            return frame
        after = number
    raise _WrongTimes


def _counted(path: str, chosen: Sequence[int]) -> Iterator[VideoFrame]:
    """Yield frames by their numbers, decoding all from the first."""
    left = iter(chosen)
    wanted = next(left, None)
    with opened(path) as (container, stream):
        for number, frame in enumerate(container.decode(stream)):
            _check(frame)
            if number == wanted:
                yield frame
                wanted = next(left, None)
            if wanted is None:
                return
    raise BadVideo(FEWER)


def _check(frame: VideoFrame) -> None:
    if frame.is_corrupt:  # the decoder has invented what it could not read
        raise BadVideo(DAMAGED)


def _by_decord(path: str, timeline: Timeline, chosen: Sequence[int]) -> Iterator[np.ndarray]:
    if timeline.codec not in _DECORD or not timeline.indexed:
        yield from _by_av(path, timeline, chosen)
        return
    import decord

    # an absolute path is no address; where a frame cannot be read, decord gives its neighbour unless told otherwise
    reader = decord.VideoReader(os.path.abspath(path), num_threads=1, fault_tol=0)
    if list(reader.get_key_indices())[:1] != [0] or len(reader) != timeline.count:  # it would invent frames
        yield from _by_av(path, timeline, chosen)
        return
    for number in chosen:  # one by one: `get_batch` may hang
        x_HWC = reader[number].asnumpy()
        height, width, _ = x_HWC.shape
        # decord takes the bytes that fill up short lines for more channels
        yield x_HWC.reshape(height, -1)[:, : 3 * width].reshape(height, width, 3)


DECODERS: dict[str, Callable[[str, Timeline, Sequence[int]], Iterator[np.ndarray]]] = {
    "av": _by_av,
    "decord": _by_decord,
}
