"""Extractors of images, texts and videos, which live in Ray's workers, and the rows that they return."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from threading import Lock
from typing import Any, Literal

import numpy as np
from PIL import Image

from polypool.encoders.backbones import Backbone, Described, build_backbone, vectors
from polypool.infra.digests import why_changed
from polypool.infra.errors import InputError
from polypool.infra.pictures import load
from polypool.infra.spec import trust_modules
from polypool.infra.video import SECONDS, BadVideo, Frame, VideoReaders, choose_decoder, describe_decoder
from polypool.pipelines.data.extraction.workers import Batch, Row

_BEGIN_END = re.compile(r"_(\d{6})_(\d{6})$")
_FRAMES = 20  # as in HGR, where none is said


class Extractor:
    """Describes batches of images, texts or videos with a backbone.

    Args:
        backbone: spec of the backbone.
        threads: images or videos decoded at a time, or threads that torch may use.
        trusting: modules whose code the spec may name.
    """

    def __init__(self, *, backbone: str, threads: int, trusting: Sequence[str] = ()) -> None:
        trust_modules(*trusting)
        self._backbone: Any = build_backbone(backbone)
        self._pool = ThreadPoolExecutor(threads)


class ImageExtractor(Extractor):
    """Decodes and describes images."""

    def __call__(self, batch: Batch) -> list[Row]:
        """Return a row for each of the batch's `ids`, `paths` and `digests`."""
        files = zip(batch["paths"], batch["digests"], strict=True)
        loaded = list(self._pool.map(lambda file: load(file[0], digest=file[1]), files))
        images = [image for image in loaded if isinstance(image, Image.Image)]
        features = iter(self._backbone(images) if images else [])
        return [
            row_of(id, path, image if isinstance(image, str) else next(features))
            for id, path, image in zip(batch["ids"], batch["paths"], loaded, strict=True)
        ]


class TextExtractor(Extractor):
    """Describes texts."""

    def __init__(self, *, backbone: str, threads: int, trusting: Sequence[str] = ()) -> None:
        import torch  # slow, and of use to this extractor alone

        torch.set_num_threads(threads)
        super().__init__(backbone=backbone, threads=threads, trusting=trusting)

    def __call__(self, batch: Batch) -> list[Row]:
        """Return a row for each of the batch's `ids` and `texts`."""
        described = self._backbone(list(batch["texts"]))
        return [
            row_of(id, repr(text), x_ND)
            for id, text, x_ND in zip(batch["ids"], batch["texts"], described, strict=True)
        ]


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
    """PyAV, or decord, which says nothing of damage that it meets; what it reads wrongly is left to PyAV."""


@dataclass(frozen=True, kw_only=True)
class Videos:
    """Settings by which workers turn videos into sets, as fits a backbone.

    Args:
        options: as requested.
        frames: at most so many of each video, evenly spaced; all where None.
        dim: width of the elements.
        batch: frames of one video that go through a backbone of images together.
        decoder, version: `av` or `decord`; its name and version.
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


class VideoExtractor(Extractor):
    """Decodes and describes videos as `videos` says."""

    def __init__(self, *, backbone: str, threads: int, videos: Videos, trusting: Sequence[str] = ()) -> None:
        super().__init__(backbone=backbone, threads=threads, trusting=trusting)
        here = describe_decoder(videos.decoder)
        if here != videos.version:
            raise RuntimeError(f"this worker has {here}, where the store shall be made with {videos.version}")
        self._videos, self.columns = videos, videos.columns(self._backbone)
        self._lock = Lock()  # videos are decoded at the same time, and described one after another
        self._readers = VideoReaders(threads, decoder=videos.decoder, timeout=videos.options.timeout)

    def __call__(self, batch: Batch) -> list[Row]:
        """Return a row for each of the batch's `ids`, `paths` and `digests`.

        A row has the features and seconds of a video, or why there are none.
        """
        return list(self._pool.map(self._row, batch["ids"], batch["paths"], batch["digests"]))

    def _row(self, id: str, path: str, digest: str) -> Row:
        if why := why_changed(path, digest):
            return row_of(id, path, why) | {"frames": 0}
        seconds = list[float]()
        try:
            every, at_most = self._videos.options.every or 1, self._videos.frames
            with closing(self._readers.frames(path, every=every, at_most=at_most)) as decoded:
                parts = self._features(_images(decoded, seconds))
            row = row_of(id, path, self._with_seconds(parts, seconds))
            return row | {"frames": len(seconds), "odd": _odd_length(id, seconds)}
        except BadVideo as bad:
            return row_of(id, path, str(bad)) | {"frames": 0}

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
        self._readers.close()


def _odd_length(id: str, seconds: Sequence[float]) -> str:
    """Return the length of a clip by the times of its sampled frames, where its id says another one; else nothing.

    Ids of VATEX and Kinetics end in the seconds at which a clip begins and ends in its video: `..._000010_000020`.
    """
    if not (found := _BEGIN_END.search(id)):
        return ""
    begin, end = map(int, found.groups())
    slack = 1 + (seconds[-1] - seconds[-2] if len(seconds) > 1 else 0)
    return f"{seconds[-1]:.1f} s" if abs(seconds[-1] - (end - begin)) > slack else ""


def _images(frames: Iterable[Frame], seconds: list[float]) -> Iterator[Image.Image]:
    """Turn frames into images, and note when each is shown."""
    for x_HW3, second in frames:
        seconds.append(second)
        yield Image.fromarray(x_HW3)


def row_of(id: str, path: str, described: np.ndarray | Described | str) -> Row:
    """Return a row of what a backbone returned, or of why there are no features."""
    if isinstance(described, str):
        return {"id": id, "path": path, "why": described, "x_NW": None}
    x_NW = described.side_by_side() if isinstance(described, Described) else described
    return {"id": id, "path": path, "why": "", "x_NW": np.ascontiguousarray(x_NW, np.float32)}


def parted(x_NW: np.ndarray, columns: Mapping[str, int]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the vectors of a row's array, and its columns."""
    first = x_NW.shape[1] - sum(columns.values())
    ends = accumulate((columns[name] for name in sorted(columns)), initial=first)
    return x_NW[:, :first], {
        name: x_NW[:, begin:end] for name, (begin, end) in zip(sorted(columns), pairwise(ends), strict=True)
    }
