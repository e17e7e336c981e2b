"""Videos to features in Ray's workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from queue import SimpleQueue
from threading import Lock
from typing import Any, Literal

import numpy as np
from PIL import Image

from polypool.encoders.backbones import Backbone, build_backbone, vectors
from polypool.infra.errors import InputError
from polypool.infra.trust import trust_modules
from polypool.infra.video.containers import SECONDS, BadVideo, Frame
from polypool.infra.video.decoding import choose_decoder, describe_decoder
from polypool.infra.video.video_reader import VideoReader
from polypool.pipelines.data.extraction.extractors import row_of
from polypool.pipelines.data.extraction.workers import Batch, Row

_FRAMES = 20  # as in HGR, where none is said


@dataclass(frozen=True, kw_only=True)
class VideoOptions:
    """How videos are read."""

    frames: int | None = None
    """Take at most so many frames of a video, evenly spaced; 20 by default, and all for i3d or with --every."""
    every: int | None = None
    """Take the first frame of a video and each so many after it, as HGR does with 16 of MSR-VTT."""
    pool: Literal["mean", "concat", "all"] = "mean"
    """What the cells of a frame become: their mean; side by side one vector; all of them elements of the video."""
    timeout: float = 60.0
    """Seconds of decoding after which a video is given up."""
    decoder: Literal["av", "decord"] = "av"
    """PyAV, or decord, which says nothing of damage that it meets, and reads fewer codecs."""


@dataclass(frozen=True, kw_only=True)
class Videos:
    """Settings by which workers turn videos into sets.

    Args:
        options: frames, pooling and decoder.
        frames: at most so many of each video, evenly spaced; all where None.
        dim: width of the elements.
        batch: frames that go through a backbone of images together, all of one video.
        decoder: `av` or `decord`.
        version: its name and version.
    """

    options: VideoOptions
    frames: int | None
    dim: int
    batch: int
    decoder: str
    version: str

    @classmethod
    def plan(cls, backbone: Any, options: VideoOptions, *, batch: int) -> Videos:
        """Return what fits a backbone: those that read whole videos get all frames, others 20 by default.

        Raises:
            InputError: numbers that make no sense, a decoder that is not there, or a pooling of frames for a backbone
                that makes none.
        """
        whole, frames = backbone.reads == "video", options.frames
        for flag, number in (("--frames", frames), ("--every", options.every)):
            if number is not None and number < 1:
                raise InputError(f"{flag} must be at least 1, got {number}")
        if not options.timeout > 0:
            raise InputError(f"--timeout must be above 0, got {options.timeout:g}")
        if whole and options.pool != "mean":
            raise InputError(
                f"--pool {options.pool} is for backbones of images; this one makes vectors of whole videos"
            )
        cells = len(vectors(backbone([Image.new("RGB", (224, 224))])[0])) if options.pool == "concat" else 1
        decoder = choose_decoder(options.decoder)
        return cls(
            options=options,
            frames=frames if whole or frames or options.every else _FRAMES,
            dim=cells * backbone.dim,
            batch=batch,
            decoder=decoder,
            version=describe_decoder(decoder),
        )

    def columns(self, backbone: Backbone) -> dict[str, int]:
        """Return the columns of the store, with the numbers of an element in each; clips of whole videos have none."""
        return {} if backbone.reads == "video" else {SECONDS: 1}

    def describe(self, backbone: Backbone) -> dict[str, object]:
        """Return what the features depend on."""
        pool = {} if backbone.reads == "video" else {"pool": self.options.pool}
        every = {"every": self.options.every} if self.options.every else {}
        return {"decoder": self.version, "frames": self.frames or "all"} | every | pool


class VideoExtractor:
    """Decodes and describes batches of videos; lives in a Ray actor.

    Args:
        backbone: spec of the backbone.
        threads: videos decoded at a time.
        videos: how.
    """

    one_by_one = True

    def __init__(self, *, backbone: str, threads: int, videos: Videos, trusting: Sequence[str] = ()) -> None:
        trust_modules(*trusting)
        here = describe_decoder(videos.decoder)
        if here != videos.version:
            raise RuntimeError(f"this worker has {here}, where the store shall be made with {videos.version}")
        self._backbone: Any = build_backbone(backbone)
        self._videos, self.columns = videos, videos.columns(self._backbone)
        self._pool = ThreadPoolExecutor(threads)
        self._lock = Lock()  # videos are decoded at the same time, and described one after another
        self._readers: SimpleQueue[VideoReader] = SimpleQueue()
        for _ in range(threads):
            self._readers.put(VideoReader(decoder=videos.decoder, timeout=videos.options.timeout))

    def __call__(self, batch: Batch) -> list[Row]:
        """Return a row for each of the batch's `ids` and `paths`: its features and seconds, or why there are none."""
        return list(self._pool.map(self._row, batch["ids"], batch["paths"]))

    def _row(self, id: str, path: str) -> Row:
        reader, seconds = self._readers.get(), list[float]()
        try:
            every, at_most = self._videos.options.every or 1, self._videos.frames
            with closing(reader.frames(path, every=every, at_most=at_most)) as decoded:
                parts = self._features(_images(decoded, seconds))
            return row_of(id, path, self._with_seconds(parts, seconds)) | {"frames": len(seconds)}
        except BadVideo as bad:
            return row_of(id, path, str(bad)) | {"frames": 0}
        finally:
            self._readers.put(reader)

    def _features(self, frames: Iterator[Image.Image]) -> list[np.ndarray]:
        """Return the `(N, dim)` features of a video, or of each of its frames."""
        if self._backbone.reads == "video":
            return [self._backbone(frames)]
        parts = []
        while images := list(islice(frames, self._videos.batch)):
            with self._lock:
                parts += [self._pooled(vectors(described)) for described in self._backbone(images)]
        return parts

    def _with_seconds(self, parts: list[np.ndarray], seconds: list[float]) -> np.ndarray:
        """Return a video's elements, float32, each with the second of its frame beside it."""
        x_ND = np.concatenate(parts, dtype=np.float32)
        if not self.columns:
            return x_ND
        second_N = np.repeat(np.asarray(seconds, np.float32), [len(part) for part in parts])
        return np.concatenate([x_ND, second_N[:, None]], axis=1)

    def _pooled(self, x_ND: np.ndarray) -> np.ndarray:
        """Return the `(N, dim)` elements that a frame adds to its video."""
        if self._videos.options.pool == "mean":
            return x_ND.mean(axis=0, keepdims=True)
        if self._videos.options.pool == "all":
            return x_ND
        if x_ND.size != self._videos.dim:
            cells = self._videos.dim // x_ND.shape[1]
            raise BadVideo(f"frames of {len(x_ND)} cells, expected {cells}; --pool mean takes any number")
        return x_ND.reshape(1, -1)

    def close(self) -> None:
        """End the processes that decode."""
        while not self._readers.empty():
            self._readers.get().close()


def _images(frames: Iterable[Frame], seconds: list[float]) -> Iterator[Image.Image]:
    """Turn frames into images, and note when each is shown."""
    for x_HW3, second in frames:
        seconds.append(second)
        yield Image.fromarray(x_HW3)
