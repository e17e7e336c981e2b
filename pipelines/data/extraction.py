"""Extraction of features by a backbone: of a corpus into a store, by Ray workers, and of a new file.

The store is in the order of the corpus; an interrupted extraction can be resumed.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, count, islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from PIL import Image

from polypool.encoders.backbones import (
    Backbone,
    ImageFeatures,
    build_backbone,
    recorded_backbone,
    vectors,
)
from polypool.encoders.backbones.model_folders import remember_model
from polypool.infra.digests import why_changed
from polypool.infra.errors import AwayError, InputError
from polypool.infra.fields import above, at_least, from_plain, validate
from polypool.infra.files import existing
from polypool.infra.paths import here
from polypool.infra.pictures import load
from polypool.infra.process.progress import Progress, waiting
from polypool.infra.ray import ray_session, waiting_for_cores
from polypool.infra.registry import BACKBONES
from polypool.infra.spec import Spec, trust_modules, trust_specs, trusted
from polypool.infra.storage import Url, exists, place
from polypool.infra.store import StoreWriter
from polypool.infra.store.feature_store import text_id
from polypool.infra.store.findings import USUAL, Flagged, Skipped, Tolerance
from polypool.infra.store.manifest import NAME as MANIFEST
from polypool.infra.store.manifest import Manifest
from polypool.infra.store.writer import ColumnsWriter, with_columns
from polypool.infra.video import SECONDS, BadVideo, Frame, VideoReaders, choose_decoder, describe_decoder
from polypool.tasks.datasets.corpus import Corpus, Item, QuestionCorpus, open_corpus
from polypool.tasks.datasets.readers.folders import is_video

if TYPE_CHECKING:
    from polypool.tasks.inputs.visuals import FeatureSource


Batch = dict[str, list[str]]
"""A batch: `ids`, and `paths` with `digests` (empty if unknown), or `texts`."""
Row = dict[str, Any]
"""The features of an image, video or text.

`id`; `path`, or the text; `why`, the reason for missing features, or empty; its vectors `x_ND`, float32, and their
`columns` `(N, C)` by name; for a video the number of `frames`, and `odd`, an unexpected length.
"""
_PREFETCH = 2  # batches sent to each worker, which never waits for the next
_ATTEMPTS = 3


def stream(
    batches: Iterable[Batch], *, extractor: Callable[..., Any], options: dict[str, Any], gpu: bool
) -> Generator[Row, None, None]:
    """Yield an extractor's rows for all batches, in order, from one worker per core or GPU of the cluster.

    Batches are read lazily, when a worker is free. A worker that dies is restarted, and its batch is retried.

    Args:
        batches: arguments of the extractor.
        extractor: class of the extractor.
        options: arguments of its constructor, without `threads`.
        gpu: give each worker a GPU, if available.

    Raises:
        AwayError: workers died repeatedly on the same batch.
    """
    import ray
    from ray.exceptions import RayActorError
    from ray.util import ActorPool

    has = ray.cluster_resources()
    cpus, gpus = int(has.get("CPU", 1)), int(has.get("GPU", 0)) if gpu else 0
    threads = max(1, cpus // gpus) if gpus else 1
    coming = iter(batches)
    first = [*islice(coming, gpus or cpus)]
    kind: Any = ray.remote(_Worker).options(
        num_cpus=threads,
        num_gpus=1 if gpus else 0,
        max_restarts=-1,
        max_task_retries=_ATTEMPTS - 1,
        max_concurrency=_PREFETCH if gpus else 1,  # a GPU computes while the next batch is read
    )
    workers: list[Any] = [kind.remote(extractor, options | {"threads": threads}, trusted()) for _ in first]
    pool = ActorPool(workers * _PREFETCH)
    for _ in workers * _PREFETCH:  # a worker that waits for a core gets no batch
        pool.submit(lambda worker, _: worker.ready.remote(), None)
    coming, sent = chain(first, coming), 0
    batch = next(coming, None)
    done: dict[int, list[Row] | Exception] = {}
    try:
        for wanted in count():
            while wanted not in done:
                while batch is not None and pool.has_free():
                    pool.submit(lambda worker, task: worker.extract.remote(*task), (sent, batch))
                    sent, batch = sent + 1, next(coming, None)
                if wanted == sent and batch is None:
                    return
                done |= pool.get_next_unordered()
            rows = done.pop(wanted)
            if isinstance(rows, Exception):
                raise rows
            yield from rows
    except RayActorError as error:
        raise AwayError(
            f"a worker died {_ATTEMPTS} times on one batch, probably out of memory; try a smaller --batch. "
            f"Ray says: {error}"
        ) from error
    finally:
        for worker in workers if ray.is_initialized() else ():
            ray.kill(worker)


class _Worker:
    """A Ray actor with an extractor, which is created with the first batch, so that its errors reach the driver.

    Args:
        extractor: class of the extractor.
        options: arguments of its constructor.
        trusting: modules whose code the options may name.
    """

    def __init__(
        self, extractor: Callable[..., Any], options: dict[str, Any], trusting: Sequence[str]
    ) -> None:
        trust_modules(*trusting)
        # before torch is imported; Ray keeps a user's value, which oversubscribes the cores
        os.environ["OMP_NUM_THREADS"] = str(options["threads"])
        self._make, self._extractor, self._lock = lambda: extractor(**options), None, Lock()

    def ready(self) -> dict[int, list[Row] | Exception]:
        """Return no rows, as soon as the actor runs."""
        return {}

    def extract(self, number: int, batch: Batch) -> dict[int, list[Row] | Exception]:
        """Return the rows of a batch by its number, or an error, which the driver raises in the order of batches."""
        try:
            with self._lock:
                self._extractor = self._extractor or self._make()
            return {number: self._extractor(batch)}
        except Exception as error:
            error.add_note(traceback.format_exc())
            return {number: error}


_BEGIN_END = re.compile(r"_(\d{6})_(\d{6})$")
_DEFAULT_FRAMES = 20  # as in HGR


class Extractor:
    """Extracts features of batches of images, texts or videos with a backbone.

    Args:
        backbone: a backbone, or its spec.
        threads: number of images or videos decoded concurrently.
    """

    def __init__(self, *, backbone: str | Backbone, threads: int) -> None:
        self._backbone: Any = build_backbone(backbone) if isinstance(backbone, str) else backbone
        self._pool = ThreadPoolExecutor(threads)


class ImageExtractor(Extractor):
    """Decodes images and extracts their features."""

    def __call__(self, batch: Batch) -> list[Row]:
        """Return a row for each of the batch's `ids`, `paths` and `digests`."""
        loaded = list(self._pool.map(self._prepared, batch["paths"], batch["digests"]))
        images = [image for image in loaded if not isinstance(image, str)]
        features = iter(self._backbone(images) if images else [])
        return [
            make_row(id, path, image if isinstance(image, str) else next(features))
            for id, path, image in zip(batch["ids"], batch["paths"], loaded, strict=True)
        ]

    def _prepared(self, path: str, digest: str) -> Any:
        """Return an image as the backbone takes it, or why it cannot be read."""
        image = load(path, digest=digest)
        return image if isinstance(image, str) else self._backbone.prepare(image)


class TextExtractor(Extractor):
    """Extracts features of texts."""

    def __call__(self, batch: Batch) -> list[Row]:
        """Return a row for each of the batch's `ids` and `texts`."""
        described = self._backbone(list(batch["texts"]))
        return [
            make_row(id, repr(text), x_ND)
            for id, text, x_ND in zip(batch["ids"], batch["texts"], described, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class VideoOptions:
    """Options for reading videos."""

    frames: Annotated[int, at_least(1)] | None = None
    """Maximum number of frames of a video, evenly spaced (default: 20; all for i3d or with --every)."""
    every: Annotated[int, at_least(1)] | None = None
    """Take every K-th frame of a video, such as 16 for HGR on MSR-VTT."""
    pool: Literal["mean", "concat", "all"] = "mean"
    """Pooling of the cells of a frame: their mean; their concatenation; or all cells as elements of the video."""
    timeout: Annotated[float, above(0)] = 60.0
    """Timeout for decoding a video, in seconds."""
    decoder: Literal["av", "decord"] = "av"
    """PyAV, or decord, which ignores damage; PyAV decodes the formats that decord misreads."""

    def __post_init__(self) -> None:
        validate(self)


@dataclass(frozen=True, kw_only=True)
class VideoSettings:
    """Settings for turning videos into sets with a backbone.

    Args:
        options: the user's options.
        frames: maximum number of frames per video, evenly spaced; None for all.
        dim: width of the elements.
        batch: batch size in frames of one video, for backbones of images.
        version: name and version of the decoder.
    """

    options: VideoOptions
    frames: int | None
    dim: int
    batch: int
    version: str

    @classmethod
    def plan(cls, backbone: Any, options: VideoOptions, *, batch: int) -> VideoSettings:
        """Return the settings for a backbone: by default 20 frames; all for backbones of whole videos, or with `every`.

        Raises:
            InputError: a missing decoder, or a pooling of frames for a backbone of whole videos.
        """
        whole, frames = backbone.reads == "video", options.frames
        if whole and options.pool != "mean":
            raise InputError(f"--pool {options.pool} is for backbones of images; this one reads whole videos")
        cells = len(vectors(backbone([Image.new("RGB", (224, 224))])[0])) if options.pool == "concat" else 1
        return cls(
            options=options,
            frames=frames if whole or frames or options.every else _DEFAULT_FRAMES,
            dim=cells * backbone.dim,
            batch=batch,
            version=describe_decoder(choose_decoder(options.decoder)),
        )

    def columns(self, backbone: Backbone) -> dict[str, int]:
        """Return the widths of the store's columns by name; none for backbones of whole videos."""
        return {} if backbone.reads == "video" else {SECONDS: 1}

    def describe(self, backbone: Backbone) -> dict[str, object]:
        """Return the settings that the features depend on, for the manifest."""
        pool = {} if backbone.reads == "video" else {"pool": self.options.pool}
        every = {"every": self.options.every} if self.options.every else {}
        return {"decoder": self.version, "frames": self.frames or "all"} | every | pool


class VideoExtractor(Extractor):
    """Decodes videos and extracts their features, with the settings `videos`."""

    def __init__(self, *, backbone: str | Backbone, threads: int, videos: VideoSettings) -> None:
        super().__init__(backbone=backbone, threads=threads)
        self._videos = videos
        self._lock = Lock()  # videos are decoded concurrently, and share the backbone
        self._readers = VideoReaders(threads, decoder=videos.options.decoder, timeout=videos.options.timeout)

    def __call__(self, batch: Batch) -> list[Row]:
        """Return a row for each of the batch's `ids`, `paths` and `digests`: features and seconds, or an error."""
        return list(self._pool.map(self._row, batch["ids"], batch["paths"], batch["digests"]))

    def _row(self, id: str, path: str, digest: str) -> Row:
        if why := why_changed(path, digest):
            return make_row(id, path, why)
        seconds = list[float]()
        try:
            every, at_most = self._videos.options.every or 1, self._videos.frames
            with closing(self._readers.frames(path, every=every, at_most=at_most)) as decoded:
                row = make_row(id, path, self._features(_as_images(decoded, seconds), seconds))
            return row | {"frames": len(seconds), "odd": _odd_length(id, seconds)}
        except BadVideo as bad:
            return make_row(id, path, str(bad))

    def _features(self, frames: Iterator[Image.Image], seconds: list[float]) -> np.ndarray | ImageFeatures:
        """Return the features of a video; of a backbone of images, with the seconds of the frames as a column."""
        if self._backbone.reads == "video":
            return self._backbone(frames)
        parts = []
        while images := list(islice(frames, self._videos.batch)):
            with self._lock:
                parts += [self._pooled(vectors(described)) for described in self._backbone(images)]
        second_N = np.repeat(np.asarray(seconds, np.float32), [len(part) for part in parts])
        return ImageFeatures(x_ND=np.concatenate(parts), columns={SECONDS: second_N[:, None]})

    def _pooled(self, x_ND: np.ndarray) -> np.ndarray:
        """Return the `(N, dim)` elements of a frame."""
        if self._videos.options.pool == "mean":
            return x_ND.mean(axis=0, keepdims=True)
        if self._videos.options.pool == "all":
            return x_ND
        if x_ND.size != self._videos.dim:
            cells = self._videos.dim // x_ND.shape[1]
            raise BadVideo(f"frames of {len(x_ND)} cells, expected {cells}; --pool mean takes any number")
        return x_ND.reshape(1, -1)

    def close(self) -> None:
        """Stop the decoding processes."""
        self._readers.close()


def _odd_length(id: str, seconds: Sequence[float]) -> str:
    """Return the length of a clip by the times of its sampled frames if it contradicts the id; else empty.

    Ids of VATEX and Kinetics end in the seconds of the clip's begin and end in its video: `..._000010_000020`.
    """
    if not (found := _BEGIN_END.search(id)):
        return ""
    begin, end = map(int, found.groups())
    slack = 1 + (seconds[-1] - seconds[-2] if len(seconds) > 1 else 0)
    return f"{seconds[-1]:.1f} s" if abs(seconds[-1] - (end - begin)) > slack else ""


def _as_images(frames: Iterable[Frame], seconds: list[float]) -> Iterator[Image.Image]:
    """Convert frames to images, and append their times to `seconds`."""
    for x_HW3, second in frames:
        seconds.append(second)
        yield Image.fromarray(x_HW3)


def make_row(id: str, path: str, described: np.ndarray | ImageFeatures | str) -> Row:
    """Return a row of a backbone's output, or of the reason for missing features."""
    if isinstance(described, str):
        return {"id": id, "path": path, "why": described}
    x_ND = np.ascontiguousarray(vectors(described), np.float32)
    columns = described.columns if isinstance(described, ImageFeatures) else {}
    return {"id": id, "path": path, "why": "", "x_ND": x_ND, "columns": columns}


VIDEO_DEFAULTS = VideoOptions()
_VIDEOS_OF_A_GPU = 8  # decoded concurrently
_FLAGS = {"image": "leave out --texts", "video": "add --video", "text": "add --texts"}


@dataclass(frozen=True, kw_only=True)
class Text:
    """A caption or question of a split; equal texts have one id."""

    id: str
    split: str
    text: str


_Item = Item | Text


@dataclass(frozen=True, kw_only=True)
class Extracted:
    """An extracted store and the time of extraction.

    Attributes:
        unit: `image`, `video` or `text`.
        manifest: manifest of the store.
        new: number of sets added.
        frames: number of frames decoded.
        seconds: duration.
    """

    unit: str
    manifest: Manifest
    new: int
    frames: int
    seconds: float


def extract(
    *,
    corpus: Path | Url,
    out: Path | Url,
    backbone: str = "cells",
    dtype: str = "float16",
    batch: int = 16,
    splits: Sequence[str] = (),
    limit: int | None = None,
    video: bool = False,
    texts: bool = False,
    videos: VideoOptions = VIDEO_DEFAULTS,
    tolerance: Tolerance = USUAL,
) -> Extracted:
    """Extract features of the images, videos or texts of a corpus; see `polypool.pipelines.commands.extract`.

    Raises:
        InputError: no corpus, an unknown backbone or split, a finished store in `out` that already has all of this or
            was made with other settings, a backbone for another kind of input, no usable image, video or text, or more
            skipped files than tolerated.
    """
    if batch < 1 or (limit is not None and limit < 1):
        raise InputError(f"--batch and --limit must be at least 1, got {batch} and {limit}")
    if video and texts:
        raise InputError(
            "--video and --texts make two stores; extract them one after the other, each with its own backbone"
        )
    if not video and videos != VIDEO_DEFAULTS:
        raise InputError("options of videos, such as --frames, need --video and a corpus of videos")
    started, store, opened = time.monotonic(), place(out), open_corpus(corpus)
    for split in (chosen := list(splits or opened.splits)):
        opened.check_split(split)
    if not (video or texts):
        (first,) = islice(_images(opened, chosen[0], 1), 1)
        if is_video(first.path):
            raise InputError(f"{place(corpus)} is a corpus of videos, such as {first.path}: add --video")
    trust_specs(backbone)
    backbone = BACKBONES.located(backbone, here)
    work = _work(backbone, "text" if texts else "video" if video else "image", videos, batch=batch)
    job = {"corpus": opened.digest, "batch": batch}
    source = with_columns(work.source | job, work.columns)
    limits = dict.fromkeys(chosen, limit)
    if extends := bool(stored := _stored_limits(store, source)):
        limits = _extended(stored, limits, store=store)
    differ = len({*limits.values()}) > 1
    source |= {"splits": [*limits], "limit": limits if differ else limits[chosen[0]]}
    listed = partial(_listed, opened, limits, texts=texts)
    with StoreWriter(store, dim=work.dim, dtype=dtype, source=source, extends=extends) as writer:
        before = len(writer.done)
        frames = _write(writer, work, opened, listed, out=store, extends=extends, tolerance=tolerance)
        trained = (item.id for item in listed() if item.split == "train") if texts else opened.training_ids()
        manifest = writer.close(statistics_of=trained, tolerance=tolerance)
    return Extracted(
        unit=work.unit,
        manifest=manifest,
        new=manifest.sets - before,
        frames=frames,
        seconds=time.monotonic() - started,
    )


@dataclass(frozen=True, kw_only=True)
class _Work:
    """The job of the workers: an extractor's class and options, its output, and the batch size."""

    unit: str
    extractor: type
    options: dict[str, Any]
    dim: int
    columns: Mapping[str, int]
    source: dict[str, Any]
    gpu: bool
    size: int

    def batches(self, items: Iterator[_Item], *, done: Sequence[set[str]]) -> Iterator[list[_Item]]:
        """Yield each batch of items, unless every set of stored ids in `done` has all of them.

        A partly stored batch is computed again as a whole: other images of a batch may change the last bit of an
        image's features.
        """
        while part := [*islice(items, self.size)]:
            if not all(stored.issuperset(item.id for item in part) for stored in done):
                yield part


def _work(backbone: str, reads: str, videos: VideoOptions, *, batch: int) -> _Work:
    """Return the job of a backbone on images, videos or texts.

    Raises:
        InputError: the backbone reads another kind of input.
    """
    built = build_backbone(backbone)
    if built.reads != reads and (built.reads, reads) != ("image", "video"):  # frames of videos are images
        raise InputError(
            f"the backbone {backbone!r} reads {built.reads}s, not {reads}s: {_FLAGS[built.reads]}, and give it a "
            "corpus of them; or choose another backbone"
        )
    if built.note:
        print(f"note: {built.note}", file=sys.stderr)
    params = Spec.parse(backbone).params
    remember_model(str(params.get("name") or params.get("weights") or ""), described := built.describe())
    plan = VideoSettings.plan(built, videos, batch=batch) if reads == "video" else None
    return _Work(
        unit=reads,
        extractor={"image": ImageExtractor, "text": TextExtractor, "video": VideoExtractor}[reads],
        options={"backbone": backbone} | ({"videos": plan} if plan else {}),
        dim=plan.dim if plan else built.dim,
        columns=plan.columns(built) if plan else built.columns,
        source={"extractor": described} | ({"video": plan.describe(built)} if plan else {}),
        gpu=built.gpu,
        size=(_VIDEOS_OF_A_GPU if built.gpu else 1) if plan else batch,
    )


def _stored_limits(store: Path | Url, source: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the limit of each split of a complete store that can be extended; empty without a store.

    Raises:
        InputError: the store was made with other settings.
    """
    if not exists(store / MANIFEST):
        return {}
    stored = Manifest.read(store).source
    splits, limit = stored.get("splits", []), stored.get("limit")
    stored = {name: value for name, value in stored.items() if name not in ("splits", "limit")}
    now = json.loads(json.dumps(source))
    if other := [name for name in {**stored, **now} if stored.get(name) != now.get(name)]:
        raise InputError(
            f"{store}: has a complete store with another {', '.join(other)}, which cannot be extended; choose another "
            "folder with --out, or delete this one"
        )
    return {split: limit.get(split) if isinstance(limit, dict) else limit for split in splits}


def _extended(
    stored: Mapping[str, int | None], more: Mapping[str, int | None], *, store: Path | Url
) -> dict[str, int | None]:
    """Return the limits of all splits of an extended store; None for no limit.

    Raises:
        InputError: the store already has all of these.
    """
    new = {
        split: limit
        for split, limit in more.items()
        if (limit or math.inf) > (0 if split not in stored else stored[split] or math.inf)
    }
    if not new:
        has = ", ".join(
            split if limit is None else f"{split} (first {limit:,})" for split, limit in stored.items()
        )
        raise InputError(
            f"{store}: has a complete store of {has}: --splits or a larger --limit adds to it; delete this folder to "
            "start again"
        )
    return {**stored, **new}


def _listed(
    corpus: Corpus | QuestionCorpus, limits: Mapping[str, int | None], *, texts: bool
) -> Iterator[_Item]:
    """Yield the distinct images, videos or texts of some splits, each with its first split."""
    if isinstance(corpus, Corpus) and not texts:  # distinct already
        for split, limit in limits.items():
            yield from _images(corpus, split, limit)
        return
    seen = set[str]()
    for split, limit in limits.items():
        for item in texts_of(corpus, split, limit=limit) if texts else _images(corpus, split, limit):
            if item.id not in seen:
                seen.add(item.id)
                yield item


def texts_of(corpus: Corpus | QuestionCorpus, split: str, *, limit: int | None) -> Iterator[Text]:
    """Yield the captions of the first `limit` items of a split, or its first questions; None for all.

    Raises:
        InputError: no such split.
    """
    if isinstance(corpus, QuestionCorpus):
        lines = (line for (line,) in islice(corpus.rows(split, "question"), limit))
    else:
        lines = (line for (captions,) in islice(corpus.rows(split, "captions"), limit) for line in captions)
    yield from (Text(id=text_id(line), split=split, text=line) for line in lines)


def _images(corpus: Corpus | QuestionCorpus, split: str, limit: int | None) -> Iterator[Item]:
    for id, path, sha256 in islice(corpus.paths(split), limit):
        yield Item(id=id, split=split, path=path, sha256=sha256)


def _batch(corpus: Corpus | QuestionCorpus, items: list[_Item]) -> Batch:
    batch: Batch = {"ids": [item.id for item in items]}
    if texts := [item.text for item in items if isinstance(item, Text)]:
        return batch | {"texts": texts}
    images = [item for item in items if isinstance(item, Item)]
    return batch | {
        "paths": [str(corpus.image_path(image)) for image in images],
        "digests": [image.sha256 for image in images],
    }


def _write(
    writer: StoreWriter,
    work: _Work,
    corpus: Corpus | QuestionCorpus,
    listed: Callable[[], Iterator[_Item]],
    *,
    out: Path | Url,
    extends: bool,
    tolerance: Tolerance,
) -> int:
    """Extract and store the listed items that are not stored yet; return the number of decoded frames."""
    frames = 0
    with ColumnsWriter(out, work.columns, source=writer.source, extends=extends) as beside:
        done = [writer.done, *beside.done]
        total = sum(len(part) for part in work.batches(listed(), done=done))
        if not total:
            return 0
        batches = (_batch(corpus, part) for part in work.batches(listed(), done=done))
        how = {"extractor": work.extractor, "options": work.options, "gpu": work.gpu}
        with ray_session(), waiting_for_cores(1), closing(stream(batches, **how)) as rows:
            with waiting(f"the first {work.unit}: Ray's workers are loading the backbone", after=5.0):
                first = [*islice(rows, 1)]
            for row in Progress(chain(first, rows), desc="extract", total=total, unit=work.unit):
                id, where = row["id"], f"id {row['id']}, {row['path']}"
                if row["why"]:
                    writer.note(Skipped(where=where, why=row["why"]))
                    continue
                frames += row.get("frames", 0)
                beside.offer(writer, id, row["x_ND"], row["columns"], where=where)
                if length := row.get("odd"):
                    why = "a clip whose length contradicts the seconds in its id: is it the whole video?"
                    writer.note(Flagged(where=f"{where}, {length}", why=why))
        writer.judge(tolerance)
    return frames


class FileFeatures:
    """Extracts features of image or video files with the backbone of a store.

    Args:
        made: origin of the model's training features.

    Raises:
        InputError: on use: the store was not made by `extract`, or its backbone cannot be built.
    """

    def __init__(self, made: FeatureSource) -> None:
        self.made, self.source = made, made.source
        self.of_videos = "video" in made.source

    @classmethod
    def for_model(cls, adapter: Any) -> FileFeatures:
        """Return the extractor for a trained model of features, from the assets of its `Searchable` adapter.

        Raises:
            InputError: damaged assets, or a model trained without a store.
        """
        from polypool.tasks.inputs.visuals import FEATURES, FeatureSource  # which imports torch

        return cls(from_plain(FeatureSource, adapter.assets.get(FEATURES), where=f"assets.json: {FEATURES}"))

    @cached_property
    def _backbone(self) -> Any:
        extractor = self.source.get("extractor")
        if not extractor:
            origin = self.source.get("reader", "another program")
            raise InputError(
                f"{self.made.store}: its features come from {origin}, not from `polypool extract`, so they cannot be "
                "extracted from a new file; search with a text, or with --id, an id of the corpus"
            )
        where = f"{self.made.store}/{MANIFEST}: source.extractor"
        return recorded_backbone(extractor, where=where, store=self.made.store)

    @cached_property
    def _videos(self) -> VideoExtractor:
        recorded = self.source["video"]
        options = VideoOptions(
            frames=None if recorded["frames"] == "all" else recorded["frames"],
            every=recorded.get("every"),
            pool=recorded.get("pool", "mean"),
            decoder=recorded["decoder"].partition(" ")[0],
        )
        videos = VideoSettings.plan(self._backbone, options, batch=self.source.get("batch", 16))
        if videos.version != recorded["decoder"]:
            print(
                f"note: frames are decoded by {videos.version}, the store's by {recorded['decoder']}",
                file=sys.stderr,
            )
        return VideoExtractor(backbone=self._backbone, threads=1, videos=videos)

    def check(self, *, video: bool) -> None:
        """Check that features of images, or of videos, can be extracted.

        Raises:
            InputError: the store has the other kind, was not made by `extract`, or its backbone cannot be built.
        """
        if video != self.of_videos:
            has = "videos" if self.of_videos else "images"
            raise InputError(f"{self.made.store}: the model was trained on features of {has}")
        _ = self._backbone

    def of(self, path: Path, *, video: bool) -> np.ndarray:
        """Return the features `(N, dim)` of a file, rounded to the store's dtype.

        Raises:
            InputError: an image for a store of videos, or the reverse; a file that is missing or does not decode; or a
                backbone that cannot be built.
        """
        path = existing(path, what="a video" if video else "an image")
        if video != self.of_videos:
            has, say = ("videos", "--video") if self.of_videos else ("images", "--image")
            raise InputError(f"{path}: the model was trained on features of {has}; give one with {say} FILE")
        if video:
            (row,) = self._videos({"ids": [""], "paths": [str(path)], "digests": [""]})
            if row["why"]:
                raise InputError(f"{path}: {row['why']}; give a valid video")
            x_ND = row["x_ND"]
        else:
            x_ND = np.asarray(vectors(self._backbone([read_image(path)])[0]))
        if x_ND.shape[1] != self.made.dim:
            raise InputError(
                f"{path}: features of width {x_ND.shape[1]}; {self.made.store} has {self.made.dim}"
            )
        return x_ND.astype(self.made.dtype).astype(np.float32)

    def close(self) -> None:
        """Stop the decoding processes."""
        if "_videos" in self.__dict__:
            self._videos.close()


def read_image(path: Path) -> Any:
    """Return an image file as RGB.

    Raises:
        InputError: the file does not decode.
    """
    image = load(path)
    if isinstance(image, str):
        raise InputError(f"{path}: {image}; give an image such as a JPEG or PNG")
    return image
