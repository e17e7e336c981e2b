"""Turn the images, videos or texts of a corpus into a feature store, with workers of Ray.

python -m pipelines.extract --corpus DIR --backbone 'cells(grid=7)' --out DIR
python -m pipelines.extract --video --corpus DIR --backbone 'cells(grid=3)' --out DIR
python -m pipelines.extract --texts --corpus DIR --backbone 'bert(name="bert-base-uncased")' --out DIR

They are decoded and described by Ray's workers; the store is written here, in the order of the corpus, so the same
files give the same bytes. A run that was stopped goes on where it was when it is started again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tqdm import tqdm

from encoders.backbones.base import Backbone, build_backbone
from infra.errors import InputError, command
from infra.ray.session import ray_session
from infra.storage.places import Url, place
from infra.store import StoreWriter
from infra.store.columns import ColumnsWriter, with_columns
from infra.store.findings import USUAL
from infra.store.ids import IdSet
from infra.store.manifest import Manifest
from infra.trust import vouch
from pipelines.extraction.images import ImageExtractor, parted
from pipelines.extraction.texts import Text, TextExtractor, texts_of
from pipelines.extraction.videos import VideoExtractor, VideoOptions, Videos
from pipelines.extraction.workers import Batch, stream
from pipelines.ingesting.report import Tolerate, report_findings
from tasks.datasets.corpus import Corpus
from tasks.datasets.open_corpus import open_corpus
from tasks.datasets.questions import Image, QuestionCorpus
from tasks.datasets.videos.media import SUFFIXES

_BLOCK = 4  # batches of images or texts that travel together, at most
_VIDEOS = 8  # videos that travel together, at most
_DEFAULTS = VideoOptions()
_Item = Image | Text
_SAY = {"image": "leave out --texts", "video": "say --video", "text": "say --texts"}
"""How a backbone that reads something gets it."""


def extract(
    *,
    corpus: Path,
    out: Path,
    backbone: str = "cells",
    dtype: Literal["float16", "float32"] = "float16",
    batch: int = 16,
    splits: Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="(default: all)")] = (),
    limit: int | None = None,
    video: bool = False,
    texts: bool = False,
    videos: tyro.conf.OmitArgPrefixes[VideoOptions] = _DEFAULTS,
    tolerance: Tolerate = USUAL,
) -> None:
    """Turn the images, videos or texts of a corpus into a feature store.

    One that is missing or does not decode is skipped, counted and listed. A text is stored once, wherever it stands;
    its id is its SHA-256. The manifest has the statistics of the training split's features. Run again after an
    interruption, it goes on where it stopped.

    Args:
        corpus: folder of the corpus, as ingest writes it, or its URL.
        out: folder of the store, or its URL.
        backbone: what describes an image or a frame: cells, clip, dinov2, resnet, siglip or vit, with parameters, such
            as 'cells(grid=7)'; or its regions: detr, owlv2 or rtdetr, with their boxes; or all frames of a video: i3d;
            or a text: bert, clip_text or siglip_text; or your own.
        dtype: what numbers are stored as.
        batch: images, texts, or frames of one video, that go through the backbone together.
        splits: the splits to extract.
        limit: take only the first images, videos or questions of each split; of texts, the captions of these.
        video: the files of the corpus are videos.
        texts: describe the captions or questions of the corpus, not its files.
        videos: how they are read.
        tolerance: what may be left out or odd.

    Raises:
        InputError: no corpus, an unknown backbone or split, a finished store in `out`, a backbone that reads something
            else, no usable image, video or text, or more were left out than the tolerance lets pass.
    """
    _check_settings(batch=batch, limit=limit, video=video, texts=texts, videos=videos)
    out, corpus = place(out), place(corpus)
    started = time.monotonic()
    opened = open_corpus(corpus)
    for split in (chosen := list(splits or opened.splits)):
        opened.check_split(split)
    listed = partial(_listed, opened, chosen, limit=limit, texts=texts)
    if not (video or texts) and (first := next(listed())).path.lower().endswith(SUFFIXES):
        raise InputError(f"{corpus} is a corpus of videos, such as {first.path}: say --video")
    vouch(backbone)
    reads = "text" if texts else "video" if video else "image"
    work = _Extraction.of(backbone, reads, videos, batch=batch)
    job = {"corpus": opened.digest, "splits": chosen, "limit": limit, "batch": batch}
    source = with_columns(work.source | job, work.columns)
    with StoreWriter(out, dim=work.dim, dtype=dtype, source=source) as writer:
        before = len(writer.done)
        decoded = _write_with_columns(writer, out, work, opened, listed)
        trained = _stored(writer, (item.id for item in listed() if item.split == "train"))
        manifest = writer.close(statistics_of=trained, tolerance=tolerance)
    seconds = time.monotonic() - started
    _report(out, manifest, unit=work.unit, new=manifest.sets - before, frames=decoded, seconds=seconds)


def _stored(writer: StoreWriter, ids: Iterator[str]) -> Iterator[str] | None:
    """Return those of some ids that were stored; None where there are none."""
    stored = (id for id in ids if id in writer)
    first = [*islice(stored, 1)]
    return chain(first, stored) if first else None


def _check_settings(*, batch: int, limit: int | None, video: bool, texts: bool, videos: VideoOptions) -> None:
    """Refuse settings that make no sense, alone or together."""
    if batch < 1 or (limit is not None and limit < 1):
        raise InputError(f"--batch and --limit must be at least 1, got {batch} and {limit}")
    if video and texts:
        raise InputError(
            "--video and --texts are two stores; make one after the other, each with a backbone of its own"
        )
    if not video and videos != _DEFAULTS:
        raise InputError("settings of videos, such as --frames, need --video and a corpus of videos")


@dataclass(frozen=True, kw_only=True)
class _Extraction:
    """What the workers do: their class and options, and what comes of it."""

    unit: str
    extractor: type
    options: dict[str, Any]
    dim: int
    columns: Mapping[str, int]
    source: dict[str, Any]
    gpu: bool
    size: int  # of a batch
    block: int

    @classmethod
    def of(cls, backbone: str, reads: str, videos: VideoOptions, *, batch: int) -> _Extraction:
        """Return that of a backbone for images, videos or texts.

        Raises:
            InputError: it reads something else.
        """
        built = build_backbone(backbone)
        if built.reads != reads and not (
            built.reads == "image" and reads == "video"
        ):  # whose frames are images
            raise InputError(
                f"the backbone {backbone!r} reads {built.reads}s, not {reads}s: {_SAY[built.reads]}, and give it a "
                "corpus of them; or choose another backbone"
            )
        if built.note:
            print(f"note: {built.note}", file=sys.stderr)
        if reads == "video":
            return cls.on_videos(backbone, built, Videos.plan(built, videos, batch=batch))
        return cls.one_by_one(backbone, built, batch=batch)

    @classmethod
    def one_by_one(cls, backbone: str, built: Backbone, *, batch: int) -> _Extraction:
        return cls(
            unit=built.reads,
            extractor=TextExtractor if built.reads == "text" else ImageExtractor,
            options={"backbone": backbone},
            dim=built.dim,
            columns=built.columns,
            source={"extractor": built.describe()},
            gpu=built.gpu,
            size=batch,
            block=_BLOCK,
        )

    @classmethod
    def on_videos(cls, backbone: str, built: Backbone, videos: Videos) -> _Extraction:
        return cls(
            unit="video",
            extractor=VideoExtractor,
            options={"backbone": backbone, "videos": videos},
            dim=videos.dim,
            columns=videos.columns(built),
            source={"extractor": built.describe(), "video": videos.describe(built)},
            gpu=built.gpu,
            size=1,
            block=_VIDEOS,
        )

    def parts(self, items: Iterator[_Item], *, done: Sequence[IdSet]) -> Iterator[list[_Item]]:
        """Yield the batches of items that are not all in each of those `done`.

        One that is done in part is sent whole: who is in it may change the last bit of an image's features. A video is
        described by itself.
        """
        while part := [*islice(items, self.size)]:
            if not all(stored.issuperset(item.id for item in part) for stored in done):
                yield part


def _listed(
    corpus: Corpus | QuestionCorpus, splits: list[str], *, limit: int | None, texts: bool
) -> Iterator[_Item]:
    """Yield the images, videos or texts of some splits, each once: one that is in several counts to the first."""
    if isinstance(corpus, Corpus) and not texts:  # which has each in one split, once
        for split in dict.fromkeys(splits):
            yield from _images(corpus, split, limit)
        return
    seen = IdSet()
    for split in splits:
        for item in texts_of(corpus, split, limit=limit) if texts else _images(corpus, split, limit):
            if item.id not in seen:
                seen.add(item.id)
                yield item


def _images(corpus: Corpus | QuestionCorpus, split: str, limit: int | None) -> Iterator[Image]:
    return (Image(id=id, split=split, path=path) for id, path in islice(corpus.paths(split), limit))


def _batch(corpus: Corpus | QuestionCorpus, items: list[_Item]) -> Batch:
    ids = [item.id for item in items]
    if isinstance(items[0], Text):
        return {"ids": ids, "texts": [item.text for item in items]}
    return {"ids": ids, "paths": [str(corpus.image_path(item)) for item in items]}


def _write_with_columns(
    writer: StoreWriter,
    out: Path | Url,
    work: _Extraction,
    corpus: Corpus | QuestionCorpus,
    listed: Callable[[], Iterator[_Item]],
) -> int:
    """Store what is listed and not there yet; return how many frames were decoded."""
    with ColumnsWriter(out, work.columns, source=writer.source) as beside:
        done = [writer.done, *beside.done]
        total = sum(len(part) for part in work.parts(listed(), done=done))
        if not total:
            return 0
        batches = (_batch(corpus, part) for part in work.parts(listed(), done=done))
        with ray_session(), tqdm(total=total, desc="extract", unit=work.unit) as bar:
            return _write(writer, beside, batches, work, bar)


def _write(
    writer: StoreWriter, beside: ColumnsWriter, batches: Iterator[Batch], work: _Extraction, bar: tqdm
) -> int:
    """Store the features of all batches, and their columns `beside`; return how many frames were decoded."""
    frames = 0
    how = {"extractor": work.extractor, "options": work.options, "gpu": work.gpu, "block": work.block}
    with closing(stream(batches, **how)) as rows:
        for row in rows:
            bar.update()
            id, where = row["id"], f"id {row['id']}, {row['path']}"
            if row["why"]:
                writer.skip(where, row["why"])
                continue
            frames += row.get("frames", 0)
            x_ND, columns = parted(row["x_NW"], work.columns)
            beside.offer(writer, id, x_ND, columns, where=where)
    return frames


def _report(out: Path | Url, manifest: Manifest, *, unit: str, new: int, frames: int, seconds: float) -> None:
    size = sum(shard.bytes for shard in manifest.shards)
    numbers = f"{manifest.vectors:,} vectors of {manifest.dim} x {manifest.dtype}, {size:,} bytes"
    print(f"{out}: {manifest.sets:,} {unit}s, {numbers}")
    speed = f"{new / seconds:.1f} {unit}s" + (f" and {frames / seconds:.1f} frames" if frames else "")
    print(f"{new:,} of them now, in {seconds:.1f} seconds: {speed} a second")
    report_findings(out, skipped=manifest.skipped, flagged=manifest.flagged)


@command
def main() -> None:
    """Extract what the command line says."""
    tyro.cli(extract, prog="python -m pipelines.extract")


if __name__ == "__main__":
    main()
