"""Videos: frames of their files, decoded in a process that may be killed, and the writing of short ones.

Containers are of a list, read from that file alone. Frames are PyAV's or decord's, which give the same ones. Decoders
crash, and hang until they are killed: they run in a process of their own, which is this module run as a program.

PyAV seeks to places where decoding can begin, and finds each frame by its time of display; where the container has no
times, or wrong ones, frames are counted from the first. decord contains libraries of 2020: PyAV checks each file before
it, and decodes those of codecs and containers in which decord gives other frames.

The process reads requests on standard input, a line of JSON each, `{"path": str, "every": int, "at_most": int | null}`.
The answer on standard output is a series of headers (`HEADER`), each followed by its bytes: frames, then the end of the
video or why there are no more. The first header says that the process is ready. Its memory and time are bounded, as
a video file may be an attack.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import resource
import selectors
import signal
import struct
import subprocess
import sys
import time
import weakref
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from queue import LifoQueue
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

import numpy as np

import polypool
from polypool.infra.errors import InputError, unknown
from polypool.infra.files import why_no_file
from polypool.infra.pictures import still_picture

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.frame import VideoFrame
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
_SEEK_FROM = 8  # frames; fewer are decoded rather than skipped by a seek
_DECORD = ("h264", "hevc", "vp8", "vp9", "mpeg4", "mpeg2video", "mpeg1video", "mjpeg")


def choose_frames(count: int, at_most: int) -> np.ndarray:
    """Return the numbers of up to `at_most` of `count` frames: all, or as many evenly spaced ones.

    They include the first and the last; positions between two frames are rounded half to even, as in HGR's code.
    """
    if count <= at_most:
        return np.arange(count)
    return np.round(np.linspace(0, count - 1, at_most)).astype(np.int64)


def sample_frames(count: int, *, every: int = 1, at_most: int | None = None) -> np.ndarray:
    """Return the numbers of the frames 0, `every`, 2 `every`, ... of `count`, and of these at most `at_most`.

    The features that HGR released for MSR-VTT have every 16th frame: 19 of a video of 300.
    """
    frame_N = np.arange(0, count, every)
    return frame_N if at_most is None else frame_N[choose_frames(len(frame_N), at_most)]


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
            fewer = False
            if "avi" in container.format.name:  # which may end before its header says
                with open(path, "rb") as file:
                    fewer = 8 + int.from_bytes(file.read(8)[4:], "little") > os.fstat(file.fileno()).st_size
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


def frames(path: str, *, every: int = 1, at_most: int | None = None, decoder: str = "av") -> Iterator[Frame]:
    """Yield frames of a video in order; others are neither converted nor kept.

    Args:
        path: the file.
        every: the stride, from the first frame on (see `sample_frames`).
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


def write_video(path: str | Path, frames_THWC: np.ndarray, *, fps: int) -> None:
    """Write frames as MPEG-4 into an `.mp4`, with little loss.

    Args:
        path: the file; an existing one is replaced.
        frames_THWC: RGB, uint8; height and width are even.
        fps: frames a second.

    Raises:
        InputError: the file cannot be written.
    """
    import av

    try:
        with av.open(str(path), "w") as container:
            # FFmpeg's own encoder: every build has it, and every decoder reads its output
            stream = container.add_stream(
                "mpeg4", rate=fps, options={"qmin": "2", "qmax": "4", "threads": "1"}
            )
            stream.height, stream.width = frames_THWC.shape[1:3]
            stream.pix_fmt = "yuv420p"
            for frame_HWC in frames_THWC:
                container.mux(stream.encode(av.VideoFrame.from_ndarray(frame_HWC, format="rgb24")))
            container.mux(stream.encode())
    except (OSError, av.FFmpegError) as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error


_ROOT = Path(polypool.__file__).parents[1]
_SET_PIPE_SIZE, _PIPE = 1031, 1 << 20  # F_SETPIPE_SZ of fcntl(2) on Linux; bytes
_START_SECONDS = 120.0  # until the process must be ready; machines can be busy
HEADER = struct.Struct("<iiqd")
"""Height and width of a frame, the bytes that follow, and its second; or one of the marks below, 0, the bytes, 0."""
READY, END, BAD = -1, -2, -3
MEMORY = 4 << 30
"""Bytes of address space. The libraries take half a GiB of it; seventeen frames of 8K in 10 bits fit into the rest."""
_SPARE = 5.0


class VideoReader:
    """Decodes videos one after another, in a process that is started when necessary.

    One thread may use it at a time, and it cannot be pickled: workers make their own.

    Args:
        decoder: `av` or `decord`, as `choose_decoder` returns it.
        timeout: seconds of waiting for the frames of one video; the time between them does not count.
        program: started instead of this module, as in tests.
    """

    def __init__(self, *, decoder: str, timeout: float = 60.0, program: Sequence[str] | None = None) -> None:
        self.timeout = timeout
        module = ["-P", "-m", "polypool.infra.video", decoder, str(timeout)]
        self._program = list(program or [sys.executable, *module])
        self._process: subprocess.Popen[bytes] | None = None

    def frames(
        self, path: str | Path, *, every: int = 1, at_most: int | None = None
    ) -> Generator[Frame, None, None]:
        """Yield frames of a video while they are decoded; see `frames`.

        Raises:
            BadVideo: it has no (more) frames, they take too much time or memory, or the decoder crashed.
            RuntimeError: the process does not start.
        """
        complete = False
        try:
            process = self._running()
            request = {"path": str(path), "every": every, "at_most": at_most}
            left = self._send(process, json.dumps(request).encode() + b"\n")
            while True:
                (height, width, _, seconds), data, left = self._receive(process, left)
                if height in (END, BAD):
                    break
                yield Frame(np.frombuffer(data, np.uint8).reshape(height, width, 3), seconds)
            complete = True
        finally:
            if not complete:  # the rest must not be taken for the next video
                self.close()
        if height == BAD:
            raise BadVideo(data.decode())

    def close(self) -> None:
        """End the process, whatever it is doing."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # it may hang in the kernel, on a dead disk
            process.wait(5)
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self.close()  # it ended between two videos, and the next one is not to blame
        if self._process is None:
            paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
            self._process = subprocess.Popen(
                self._program,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            )
            with suppress(OSError):  # a pipe that cannot grow is only slower
                assert self._process.stdout is not None
                fcntl.fcntl(self._process.stdout, _SET_PIPE_SIZE, _PIPE)
            try:
                (mark, *_), *_ = self._receive(self._process, _START_SECONDS)
            except BadVideo as error:  # no video is at fault, and the next would fail as well
                raise RuntimeError(f"the process that decodes does not start: {error}") from error
            assert mark == READY
        return self._process

    def _send(self, process: subprocess.Popen[bytes], request: bytes) -> float:
        """Send a request, which is shorter than a pipe's buffer; return the seconds left for the answer."""
        assert process.stdin is not None
        try:
            process.stdin.write(request)
        except BrokenPipeError:
            raise BadVideo(self._ended(process)) from None
        return self.timeout

    def _receive(self, process: subprocess.Popen[bytes], left: float) -> tuple[tuple, bytearray, float]:
        """Return a header, the data that follow it, and the seconds left."""
        packed, left = self._read(process, HEADER.size, left)
        header = HEADER.unpack(packed)
        data, left = self._read(process, header[2], left)
        return header, data, left

    def _read(self, process: subprocess.Popen[bytes], size: int, left: float) -> tuple[bytearray, float]:
        """Return the next `size` bytes and the seconds left."""
        assert process.stdout is not None
        data, got = bytearray(size), 0
        view, until = memoryview(data), time.monotonic() + left
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while got < size:
                if not selector.select(max(0.0, until - time.monotonic())):
                    raise BadVideo(
                        f"decoding took too long; `extract --timeout` allows {self.timeout:g} seconds"
                    )
                read = os.readv(process.stdout.fileno(), [view[got:]])
                if not read:
                    raise BadVideo(self._ended(process))
                got += read
        return data, until - time.monotonic()

    def _ended(self, process: subprocess.Popen[bytes]) -> str:
        try:
            status = process.wait(5)
        except subprocess.TimeoutExpired:
            return "the decoder gave up"
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return f"the decoder ended ({how})"

    def __enter__(self) -> VideoReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(
    requests: BinaryIO, answers: BinaryIO, *, decoder: str, timeout: float, memory: int = MEMORY
) -> None:
    """Answer requests until there are no more.

    The system ends this process where one frame takes longer than `timeout` seconds and a little: by then the parent
    has killed it, or has ended.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for which, value in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0)):
        with suppress(ValueError, OSError):  # a system without this bound, or a hard limit below it
            resource.setrlimit(which, (value, value))

    def send(mark: int, width: int = 0, data: bytes | memoryview = b"", seconds: float = 0.0) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)  # the parent may take as long as it likes
        answers.write(HEADER.pack(mark, width, len(data), seconds))
        answers.write(data)
        answers.flush()

    send(READY)
    for line in requests:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, timeout + _SPARE)
        try:
            path = request.pop("path")
            for x_HW3, seconds in frames(path, **request, decoder=decoder):
                height, width, _ = x_HW3.shape
                send(height, width, np.ascontiguousarray(x_HW3).data.cast("B"), seconds)
                signal.setitimer(signal.ITIMER_REAL, timeout + _SPARE)
            send(END)
        except BadVideo as bad:
            send(BAD, data=str(bad).encode())


class VideoReaders:
    """A reader for each of several threads; the processes that decode start when they are needed.

    They end with `close`, or when nothing refers to this object any more.

    Args:
        count: videos that are decoded at a time.
        decoder: `av` or `decord`, as `choose_decoder` returns it.
        timeout: seconds of decoding after which a video is given up.
    """

    def __init__(self, count: int, *, decoder: str, timeout: float = 60.0) -> None:
        readers = [VideoReader(decoder=decoder, timeout=timeout) for _ in range(count)]
        self._idle: LifoQueue[VideoReader] = LifoQueue()  # one that has a process comes first
        for reader in readers:
            self._idle.put(reader)
        self.close = weakref.finalize(self, _close, readers)

    def frames(
        self, path: str | Path, *, every: int = 1, at_most: int | None = None
    ) -> Generator[Frame, None, None]:
        """Yield frames of a video, as `VideoReader.frames` does; wait while all readers are in use."""
        reader = self._idle.get()
        try:
            with closing(reader.frames(path, every=every, at_most=at_most)) as decoded:
                yield from decoded
        finally:
            self._idle.put(reader)


def _close(readers: Sequence[VideoReader]) -> None:
    for reader in readers:
        reader.close()


if __name__ == "__main__":
    # libraries may print what they like; the pipe is for frames
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for library in ("av", sys.argv[1]):  # which takes a while, and counts for no video
        importlib.import_module(library)
    serve(sys.stdin.buffer, pipe, decoder=sys.argv[1], timeout=float(sys.argv[2]))
