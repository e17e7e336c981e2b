"""Videos: decoding in a separate process that may be killed, and writing of short ones.

Only the containers in `CONTAINERS` are read, or the pictures in a folder, and no file but the named one. Frames of
containers come from PyAV or decord, which return the same pixels. Decoders crash and hang on bad files, so they run in
a process with bounded memory and time: this module as a program.

PyAV seeks to key frames and finds each frame by its time stamp; if time stamps are missing or wrong, frames are counted
from the first. decord contains libraries of 2020: PyAV checks each file first, and decodes the codecs and containers in
which decord returns other frames.

Parent and process exchange lines of JSON over a socket: a request `{"path": str, "every": int, "at_most": int | null}`;
for each frame `{"shape": [height, width, 3], "seconds": float}`, followed by its pixels; at the end `{}`, or `{"bad":
reason}`. The first line, `{}`, says that the process is ready.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
import weakref
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from io import BufferedReader
from pathlib import Path
from queue import LifoQueue
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

import numpy as np

import polypool
from polypool.infra.errors import InputError, unknown
from polypool.infra.files import why_no_file
from polypool.infra.pictures import is_picture, load, still_picture

if TYPE_CHECKING:
    from av.container import InputContainer
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
"""Supported formats, by FFmpeg's names and the usual ones. Playlists and scripts name other files, and are refused."""
MAX_PIXELS = 1 << 25
"""Maximum pixels of a frame: 8K."""
FEWER = "fewer frames than the file says, which is cut or damaged"
DAMAGED = "damaged: frames in it do not decode"
_OPTIONS = {"protocol_whitelist": "file", "format_whitelist": ",".join(CONTAINERS)}
# Units of these codecs contain at most two zero bytes in a row (H.264, section 7.4.1). If `extradata` begins with 1,
# each unit is preceded by its length, at most four zero bytes; otherwise by any number of zeros.
_COUNTED, _ZEROS = ("h264", "hevc"), bytes(8)
_SEGMENT = b"\x18\x53\x80\x67"
_SEEKING = ("mov", "matroska", "avi")  # containers with an index of key frames
_SEEK_FROM = 8  # frames; fewer are decoded rather than skipped by a seek
_DECORD = ("h264", "hevc", "vp8", "vp9", "mpeg4", "mpeg2video", "mpeg1video", "mjpeg")


def choose_frames(count: int, at_most: int) -> np.ndarray:
    """Return the indices of at most `at_most` of `count` frames, evenly spaced.

    The first and the last are included; positions between two frames are rounded half to even, as in HGR's code.
    """
    if count <= at_most:
        return np.arange(count)
    return np.round(np.linspace(0, count - 1, at_most)).astype(np.int64)


def sample_frames(count: int, *, every: int = 1, at_most: int | None = None) -> np.ndarray:
    """Return the indices 0, `every`, 2 `every`, ... of `count` frames, thinned to at most `at_most`.

    HGR's released features of MSR-VTT have every 16th frame: 19 of a video of 300.
    """
    frame_N = np.arange(0, count, every)
    return frame_N if at_most is None else frame_N[choose_frames(len(frame_N), at_most)]


class BadVideo(Exception):
    """A video without usable frames; the message is the same for all videos with the same fault."""


@contextmanager
def opened(path: str, **options: str) -> Iterator[tuple[InputContainer, VideoStream]]:
    """Open a video file with FFmpeg's options; yield it and the stream that a player shows. Raises `BadVideo`."""
    import av

    if why := why_no_file(path):
        raise BadVideo(why)
    try:
        container = av.open(f"file:{path}", options=_OPTIONS | options)
    except av.ArgumentError as error:  # another format
        if still_picture(path):
            raise BadVideo("a picture, not a video") from error
        raise BadVideo(f"does not decode as a video: none of {', '.join(CONTAINERS.values())}") from error
    except av.FFmpegError as error:
        if isinstance(error, MemoryError):
            raise
        raise BadVideo("does not decode as a video: another file, or cut or damaged") from error
    with container:
        stream = cast("VideoStream | None", container.streams.best("video"))
        if stream is None:
            raise BadVideo("no video stream")
        width, height = stream.codec_context.width, stream.codec_context.height
        if width * height > MAX_PIXELS:
            raise BadVideo(f"frames of more than {MAX_PIXELS:,} pixels; make it smaller")
        # one thread: the other cores decode other videos
        stream.thread_type, stream.codec_context.thread_count = "NONE", 1
        stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}
        yield container, stream


SECONDS = "seconds"
"""Name of the store column with the time of each element's frame, in seconds after the first frame of its video."""


class Frame(NamedTuple):
    """A frame of a video.

    Attributes:
        x_HW3: uint8, RGB, upright.
        seconds: display time after the first frame.
    """

    x_HW3: np.ndarray
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The frames of a video in display order, as its container lists them.

    Attributes:
        count: number of frames.
        times: display times in `unit`, ascending; None if the container has none.
        keys: indices of the key frames, ascending; only the first frame if the container has no index.
        codec: FFmpeg's name, such as `h264`.
        unit: seconds per unit of `times`; without times, per frame.
        indexed: whether the container has an index of key frames.
    """

    count: int
    times: tuple[int, ...] | None
    keys: tuple[int, ...]
    codec: str
    unit: float
    indexed: bool = False

    @classmethod
    def of(cls, path: str) -> Timeline:
        """Read a whole file without decoding. Raises `BadVideo`."""
        packets, corrupt, zeroed, times, keys = 0, False, False, list[int | None](), set[int | None]()
        with opened(path) as (container, stream):
            codec, formats = stream.codec_context.codec.canonical_name, container.format.name.split(",")
            for packet in container.demux(stream):
                if not packet.size:
                    continue
                data, is_first, packets = bytes(packet), packets == 0, packets + 1
                corrupt |= packet.is_corrupt or (is_first and not packet.is_keyframe)
                zeroed |= _ZEROS in data.rstrip(b"\0")
                # VP8 has reference frames that are not shown (RFC 6386, section 9.1)
                if packet.is_discard or (codec == "vp8" and not data[0] & 0x10):
                    continue
                # AVI stores the decoding order only; FFmpeg guesses times that differ from it
                times.append(None if "avi" in formats and packet.pts != packet.dts else packet.pts)
                if packet.is_keyframe:
                    keys.add(times[-1])
            extra = stream.codec_context.extradata or b""
            if "avi" in formats:  # shorter than its header says if truncated
                with open(path, "rb") as file:
                    corrupt |= (
                        8 + int.from_bytes(file.read(8)[4:], "little") > os.fstat(file.fileno()).st_size
                    )
            # an AVI header also counts frames that its writer dropped, which have no bytes
            corrupt |= packets < sum(entry.size > 0 for entry in stream.index_entries)
            corrupt |= "matroska" in formats and _cut_matroska(path)
            unit, rate = stream.time_base, stream.average_rate or stream.guessed_rate
        if corrupt:
            raise BadVideo(FEWER)
        if zeroed and codec in _COUNTED and extra[:1] == b"\1":
            raise BadVideo(DAMAGED)
        known = sorted({time for time in times if time is not None})
        if len(known) < len(times):  # a time is missing, or two frames have the same one
            return cls(
                count=len(times), times=None, keys=(0,), codec=codec, unit=float(1 / rate) if rate else 0.0
            )
        indexed = not {*_SEEKING}.isdisjoint(formats)
        return cls(
            count=len(times),
            times=tuple(known),
            keys=(0, *(number for number, time in enumerate(known) if number and indexed and time in keys)),
            codec=codec,
            unit=float(unit or 0),
            indexed=indexed,
        )

    def seconds(self, number: int) -> float:
        """Return the time of a frame, in seconds after the first."""
        return self.unit * (number if self.times is None else self.times[number] - self.times[0])

    def begin(self, number: int) -> int:
        """Return the last key frame up to this frame."""
        return self.keys[bisect_right(self.keys, number) - 1]


def _cut_matroska(path: str) -> bool:
    """Whether a Matroska or WebM file is truncated, which FFmpeg treats as the end of the video."""
    with open(path, "rb") as file:
        file.seek(4)  # the header's id, which FFmpeg has checked
        file.seek(_size(file) or 0, os.SEEK_CUR)
        if file.read(4) != _SEGMENT or (size := _size(file)) is None:
            return False
        return file.tell() + size > os.fstat(file.fileno()).st_size


def _size(file: BinaryIO) -> int | None:
    """Read a variable-length size (RFC 8794, section 4): leading zero bits count the bytes that follow.

    Returns:
        The size; None for all ones, an unknown size.
    """
    (first,) = file.read(1) or b"\xff"
    more = 8 - first.bit_length()
    number = int.from_bytes(bytes([first & (0x7F >> more)]) + file.read(more))
    return None if number == (1 << 7 * (more + 1)) - 1 else number


def frames(path: str, *, every: int = 1, at_most: int | None = None, decoder: str = "av") -> Iterator[Frame]:
    """Yield sampled frames of a video in order.

    The frames of a folder are its pictures, in the order of the numbers in their names, one second apart.

    Args:
        path: the file, or a folder of frames.
        every: stride, from the first frame on (see `sample_frames`).
        at_most: maximum number of frames, evenly spaced among these; None for all.
        decoder: `av` or `decord`.

    Raises:
        BadVideo: the file is missing, no video, damaged, truncated or without frames; frames before the damage may
            have been yielded.
    """
    if os.path.isdir(path):
        yield from _frames_below(path, every=every, at_most=at_most)
        return
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
    except Exception as error:  # decord raises RuntimeError and others, PyAV OSError, ValueError and others
        raise BadVideo(DAMAGED) from error


def _frames_below(folder: str, *, every: int, at_most: int | None) -> Iterator[Frame]:
    """Yield sampled frames of a folder of pictures. Raises `BadVideo`."""
    names = sorted((name for name in os.listdir(folder) if is_picture(name)), key=_numbered)
    if not names:
        raise BadVideo("a folder without frames")
    for number in sample_frames(len(names), every=every, at_most=at_most).tolist():
        frame = load(os.path.join(folder, names[number]))
        if isinstance(frame, str):
            raise BadVideo(f"a frame in it: {frame}")
        yield Frame(np.asarray(frame), float(number))


def _numbered(name: str) -> list[tuple[str, int]]:
    """Return a key that sorts `img9.jpg` before `img10.jpg`."""
    return [(text, int(digits or -1)) for text, digits in re.findall(r"(\D*)(\d*)", name)]


def choose_decoder(name: str = "av") -> str:
    """Return `name` if this decoder can be imported.

    Raises:
        InputError: an unknown decoder, or a failed import.
    """
    if name not in DECODERS:
        raise unknown("decoder", name, DECODERS)
    # in a separate process: its libraries may conflict with those of this process
    if subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True).returncode:
        raise InputError(f"the decoder {name!r} does not import: pip install 'polypool[video]'")
    return name


def describe_decoder(name: str) -> str:
    """Return name and version of a decoder, `av 14.0.0`."""
    return f"{name} {version(name)}"


class _WrongTimes(Exception):
    """Decoded frames differ from the container's list."""


def _by_av(path: str, timeline: Timeline, chosen: Sequence[int]) -> Iterator[np.ndarray]:
    from av.video.reformatter import VideoReformatter

    colours = VideoReformatter()  # reused, because it prepares tables

    def upright(frame: VideoFrame) -> np.ndarray:
        if abs(frame.rotation) > 360:  # FFmpeg's value for a matrix that is no rotation
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
    """Yield frames, each found by its time stamp. Raises `_WrongTimes`."""
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
                if jumped:  # perhaps to a frame that is no key frame
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
    """Yield frames by index, decoding all from the first."""
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
    if frame.is_corrupt:  # the decoder made up unreadable parts
        raise BadVideo(DAMAGED)


def _by_decord(path: str, timeline: Timeline, chosen: Sequence[int]) -> Iterator[np.ndarray]:
    if timeline.codec not in _DECORD or not timeline.indexed:
        yield from _by_av(path, timeline, chosen)
        return
    import decord

    # An absolute path is no URL. By default decord replaces an unreadable frame by its neighbour.
    reader = decord.VideoReader(os.path.abspath(path), num_threads=1, fault_tol=0)
    if list(reader.get_key_indices())[:1] != [0] or len(reader) != timeline.count:  # it would make up frames
        yield from _by_av(path, timeline, chosen)
        return
    for number in chosen:  # one by one: `get_batch` may hang
        x_HWC = reader[number].asnumpy()
        height, width, _ = x_HWC.shape
        # decord returns the padding of short lines as further channels
        yield x_HWC.reshape(height, -1)[:, : 3 * width].reshape(height, width, 3)


DECODERS: dict[str, Callable[[str, Timeline, Sequence[int]], Iterator[np.ndarray]]] = {
    "av": _by_av,
    "decord": _by_decord,
}


def write_video(path: str | Path, frames_THWC: np.ndarray, *, fps: int) -> None:
    """Write frames as MPEG-4 to an `.mp4` file with little loss.

    Args:
        path: the file; an existing one is replaced.
        frames_THWC: RGB, uint8; height and width are even.
        fps: frames per second.

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
_START_SECONDS = 120.0  # to start the process; machines can be busy
MEMORY = 4 << 30
"""Address space of the process in bytes: half a GiB for libraries, and room for seventeen 8K frames of 10 bits."""
_SPARE = 5.0


class VideoReader:
    """Decodes one video at a time, in a process that is started when necessary.

    It is for one thread at a time and cannot be pickled.

    Args:
        decoder: `av` or `decord`, from `choose_decoder`.
        timeout: seconds to wait for the frames of one video; the time between them does not count.
        program: command of the process, for tests; its last argument will be the descriptor of its socket.
    """

    def __init__(self, *, decoder: str, timeout: float = 60.0, program: Sequence[str] | None = None) -> None:
        self.timeout = timeout
        module = ["-P", "-m", "polypool.infra.video", decoder, str(timeout)]
        self._program = list(program or [sys.executable, *module])
        self._running: tuple[subprocess.Popen[bytes], socket.socket, BufferedReader] | None = None

    def frames(
        self, path: str | Path, *, every: int = 1, at_most: int | None = None
    ) -> Generator[Frame, None, None]:
        """Yield frames of a video while they are decoded; see `frames`.

        Raises:
            BadVideo: the video has no (more) frames, decoding takes too much time or memory, or the decoder crashed.
            RuntimeError: the process does not start.
        """
        complete = False
        try:
            _, connection, _ = self._start()
            with suppress(BrokenPipeError):  # it ended, as `_receive` reports
                _send(connection, {"path": str(path), "every": every, "at_most": at_most})
            left = self.timeout
            while True:
                answer, x_HW3, left = self._receive(left)
                if x_HW3 is None:
                    break
                yield Frame(x_HW3, answer["seconds"])
            complete = True
        finally:
            if not complete:  # the next video must not receive the rest
                self.close()
        if why := answer.get("bad"):
            raise BadVideo(why)

    def close(self) -> None:
        """Kill the process."""
        if self._running is None:
            return
        (process, *sockets), self._running = self._running, None
        process.kill()
        for each in sockets:
            each.close()
        with suppress(subprocess.TimeoutExpired):  # it may hang in the kernel, on a failed disk
            process.wait(5)

    def _start(self) -> tuple[subprocess.Popen[bytes], socket.socket, BufferedReader]:
        """Return the process, the socket to it, and the socket as a file."""
        if self._running is not None and self._running[0].poll() is None:
            return self._running
        self.close()  # it ended between two videos
        ours, theirs = socket.socketpair()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)  # several frames, decoded ahead
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        with theirs:
            process = subprocess.Popen(
                [*self._program, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            )
        self._running = process, ours, ours.makefile("rb")
        try:
            self._receive(_START_SECONDS)
        except BadVideo as error:  # not the video's fault: the next would fail as well
            raise RuntimeError(f"the process that decodes does not start: {error}") from error
        return self._running

    def _receive(self, left: float) -> tuple[dict[str, Any], np.ndarray | None, float]:
        """Return the next answer, the pixels `(H, W, 3)` if it is a frame, and the seconds left."""
        assert self._running is not None
        process, connection, answers = self._running
        started, x_HW3 = time.monotonic(), None
        connection.settimeout(max(left, 1e-3))
        try:
            answer = json.loads(answers.readline() or b"null")
            if answer and "shape" in answer:
                x_HW3 = np.empty(answer["shape"], np.uint8)
                if answers.readinto(x_HW3.data.cast("B")) < x_HW3.size:
                    answer = None
        except TimeoutError:
            raise BadVideo(
                f"decoding took too long; `extract --timeout` allows {self.timeout:g} seconds"
            ) from None
        except OSError:
            answer = None
        if answer is None:
            try:
                status = process.wait(5)
            except subprocess.TimeoutExpired:
                raise BadVideo("the decoder gave up") from None
            how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            raise BadVideo(f"the decoder ended ({how})")
        return answer, x_HW3, left - (time.monotonic() - started)


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def serve(connection: socket.socket, *, decoder: str, timeout: float, memory: int = MEMORY) -> None:
    """Answer requests until the parent closes the connection.

    The system ends this process if one frame takes longer than `timeout` seconds and a little: by then the parent has
    killed it, or has ended.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for which, value in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0)):
        with suppress(ValueError, OSError):  # a system without this limit, or a lower hard limit
            resource.setrlimit(which, (value, value))

    def answer(message: dict[str, Any]) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)  # the parent may take any time
        _send(connection, message)

    answer({})
    for line in connection.makefile("rb"):
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, timeout + _SPARE)
        try:
            for x_HW3, seconds in frames(request.pop("path"), **request, decoder=decoder):
                answer({"shape": x_HW3.shape, "seconds": seconds})
                connection.sendall(np.ascontiguousarray(x_HW3).data.cast("B"))
                signal.setitimer(signal.ITIMER_REAL, timeout + _SPARE)
            answer({})
        except BadVideo as bad:
            answer({"bad": str(bad)})


class VideoReaders:
    """Readers for several threads.

    Their processes end with `close`, or when nothing refers to this object any more.

    Args:
        count: number of videos decoded in parallel.
        decoder: `av` or `decord`, from `choose_decoder`.
        timeout: seconds of decoding after which a video is skipped.
    """

    def __init__(self, count: int, *, decoder: str, timeout: float = 60.0) -> None:
        readers = [VideoReader(decoder=decoder, timeout=timeout) for _ in range(count)]
        self._idle: LifoQueue[VideoReader] = LifoQueue()  # reuses running processes first
        for reader in readers:
            self._idle.put(reader)
        self.close = weakref.finalize(self, _close, readers)

    def frames(
        self, path: str | Path, *, every: int = 1, at_most: int | None = None
    ) -> Generator[Frame, None, None]:
        """Yield frames of a video like `VideoReader.frames`; wait while all readers are in use."""
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
    name, seconds, descriptor = sys.argv[1:]
    for library in ("av", name):  # slow imports, excluded from a video's timeout
        importlib.import_module(library)
    serve(socket.socket(fileno=int(descriptor)), decoder=name, timeout=float(seconds))
