"""Extraction of a corpus into a feature store by workers of Ray, in the order of the corpus; it can be resumed."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from polypool.encoders.backbones import build_backbone
from polypool.encoders.backbones.model_folders import remember_folder
from polypool.infra.errors import AbsentError, InputError, MissingError
from polypool.infra.paths import here
from polypool.infra.process.progress import Progress, waiting
from polypool.infra.ray import ray_session, waiting_for_cores
from polypool.infra.registry import BACKBONES
from polypool.infra.spec import Spec, trust_specs
from polypool.infra.storage import Url, place
from polypool.infra.store import StoreWriter
from polypool.infra.store.columns import ColumnsWriter, with_columns
from polypool.infra.store.findings import USUAL, Flagged, Skipped, Tolerance
from polypool.infra.store.ids import IdSet, text_id
from polypool.infra.store.manifest import Manifest
from polypool.pipelines.data.extraction.extractors import (
    ImageExtractor,
    TextExtractor,
    VideoExtractor,
    VideoOptions,
    Videos,
    parted,
)
from polypool.pipelines.data.extraction.workers import Batch, stream
from polypool.tasks.datasets.corpus import Corpus
from polypool.tasks.datasets.open_corpora import open_corpus
from polypool.tasks.datasets.questions import Image, QuestionCorpus
from polypool.tasks.datasets.readers.folders import VIDEOS

VIDEO_DEFAULTS = VideoOptions()
_VIDEOS_OF_A_GPU = 8  # that its worker decodes at a time, and describes one after another
_FLAGS = {"image": "leave out --texts", "video": "say --video", "text": "say --texts"}


@dataclass(frozen=True, kw_only=True)
class Text:
    """A caption or question of a split; its id is that of every text like it."""

    id: str
    split: str
    text: str


_Item = Image | Text


@dataclass(frozen=True, kw_only=True)
class Extracted:
    """A store that was extracted, and the speed of it.

    Attributes:
        unit: `image`, `video` or `text`.
        manifest: of the store.
        new: sets that were added now.
        frames: of videos that were decoded now.
        seconds: that it took.
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
    """Turn the images, videos or texts of a corpus into a feature store; see `polypool.pipelines.commands.extract`.

    Raises:
        InputError: no corpus, an unknown backbone or split, a finished store in `out` that has all of this or was made
            otherwise, a backbone that reads something else, no usable image, video or
            text, or more were left out than the tolerance lets pass.
    """
    if batch < 1 or (limit is not None and limit < 1):
        raise InputError(f"--batch and --limit must be at least 1, got {batch} and {limit}")
    if video and texts:
        raise InputError(
            "--video and --texts are two stores; make one after the other, each with a backbone of its own"
        )
    if not video and videos != VIDEO_DEFAULTS:
        raise InputError("settings of videos, such as --frames, need --video and a corpus of videos")
    started, store, opened = time.monotonic(), place(out), open_corpus(corpus)
    for split in (chosen := list(splits or opened.splits)):
        opened.check_split(split)
    if not (video or texts):
        (first,) = islice(_images(opened, chosen[0], 1), 1)
        if first.path.lower().endswith(VIDEOS):
            raise InputError(f"{place(corpus)} is a corpus of videos, such as {first.path}: say --video")
    trust_specs(backbone)
    backbone = BACKBONES.located(backbone, here)
    work = _work(backbone, "text" if texts else "video" if video else "image", videos, batch=batch)
    job = {"corpus": opened.digest, "batch": batch}
    source = with_columns(work.source | job, work.columns)
    limits = dict.fromkeys(chosen, limit)
    if extends := bool(there := _limits_there(store, source)):
        limits = _added(there, limits, store=store)
    source |= {"splits": [*limits], "limit": _as_recorded(limits)}
    listed = partial(_listed, opened, limits, texts=texts)
    with StoreWriter(store, dim=work.dim, dtype=dtype, source=source, extends=extends) as writer:
        before = len(writer.done)
        frames = _write(writer, work, opened, listed, out=store, extends=extends)
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
    """The work of the workers: an extractor's class and options, what it returns, and the size of a batch."""

    unit: str
    extractor: type
    options: dict[str, Any]
    dim: int
    columns: Mapping[str, int]
    source: dict[str, Any]
    gpu: bool
    size: int

    def batches(self, items: Iterator[_Item], *, done: Sequence[IdSet]) -> Iterator[list[_Item]]:
        """Yield the batches of items that are not all in each of those `done`.

        One that is done in part is sent whole: who is in it may change the last bit of an image's features.
        """
        while part := [*islice(items, self.size)]:
            if not all(stored.issuperset(item.id for item in part) for stored in done):
                yield part


def _work(backbone: str, reads: str, videos: VideoOptions, *, batch: int) -> _Work:
    """Return the work with a backbone on images, videos or texts.

    Raises:
        InputError: the backbone reads something else.
    """
    built = build_backbone(backbone)
    if built.reads != reads and (built.reads, reads) != ("image", "video"):  # whose frames are images
        raise InputError(
            f"the backbone {backbone!r} reads {built.reads}s, not {reads}s: {_FLAGS[built.reads]}, and give it a "
            "corpus of them; or choose another backbone"
        )
    if built.note:
        print(f"note: {built.note}", file=sys.stderr)
    remember_folder(str(Spec.parse(backbone).params.get("name", "")), described := built.describe())
    plan = Videos.plan(built, videos, batch=batch) if reads == "video" else None
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


def _limits_there(store: Path | Url, source: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the limit of each split that a complete store has, to which more can be added; empty where there is none.

    Raises:
        InputError: it was made otherwise.
    """
    try:
        there = Manifest.read(store).source
    except (AbsentError, MissingError):
        return {}
    splits, limit = there.get("splits", []), there.get("limit")
    there = {name: value for name, value in there.items() if name not in ("splits", "limit")}
    now = json.loads(json.dumps(source))
    if other := [name for name in {**there, **now} if there.get(name) != now.get(name)]:
        raise InputError(
            f"{store}: holds a complete store that was made with another {', '.join(other)}, so that nothing can be "
            "added; name another folder with --out, or remove this one to write it anew"
        )
    return {split: limit.get(split) if isinstance(limit, dict) else limit for split in splits}


def _added(
    there: Mapping[str, int | None], more: Mapping[str, int | None], *, store: Path | Url
) -> dict[str, int | None]:
    """Return the limits of the splits of a store when more are added; None is none.

    Raises:
        InputError: the store has all of these already.
    """
    new = {
        split: limit
        for split, limit in more.items()
        if (limit or math.inf) > (0 if split not in there else there[split] or math.inf)
    }
    if not new:
        has = ", ".join(
            split if limit is None else f"{split} (first {limit:,})" for split, limit in there.items()
        )
        raise InputError(
            f"{store}: holds a complete store of {has}: --splits or a larger --limit adds to it; remove this folder to "
            "write it anew"
        )
    return {**there, **new}


def _as_recorded(limits: Mapping[str, int | None]) -> Any:
    """Return the limit of all splits, or those that differ by split, as the store's source has them."""
    return dict(limits) if len({*limits.values()}) > 1 else next(iter(limits.values()))


def _listed(
    corpus: Corpus | QuestionCorpus, limits: Mapping[str, int | None], *, texts: bool
) -> Iterator[_Item]:
    """Yield the images, videos or texts of some splits, each once: one that is in several counts to the first."""
    if isinstance(corpus, Corpus) and not texts:  # which has each in one split, once
        for split, limit in limits.items():
            yield from _images(corpus, split, limit)
        return
    seen = IdSet()
    for split, limit in limits.items():
        for item in texts_of(corpus, split, limit=limit) if texts else _images(corpus, split, limit):
            if seen.add(item.id):
                yield item


def texts_of(corpus: Corpus | QuestionCorpus, split: str, *, limit: int | None) -> Iterator[Text]:
    """Yield the captions of the first items of a split, or its first questions; all without a limit.

    Raises:
        InputError: the corpus has no such split.
    """
    if isinstance(corpus, QuestionCorpus):
        lines = (line for (line,) in islice(corpus.rows(split, "question"), limit))
    else:
        lines = (line for (captions,) in islice(corpus.rows(split, "captions"), limit) for line in captions)
    yield from (Text(id=text_id(line), split=split, text=line) for line in lines)


def _images(corpus: Corpus | QuestionCorpus, split: str, limit: int | None) -> Iterator[Image]:
    for id, path, sha256 in islice(corpus.paths(split), limit):
        yield Image(id=id, split=split, path=path, sha256=sha256)


def _batch(corpus: Corpus | QuestionCorpus, items: list[_Item]) -> Batch:
    batch: Batch = {"ids": [item.id for item in items]}
    if texts := [item.text for item in items if isinstance(item, Text)]:
        return batch | {"texts": texts}
    images = [item for item in items if isinstance(item, Image)]
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
) -> int:
    """Store what is listed and not there yet, with its columns; return how many frames were decoded."""
    frames = 0
    with ColumnsWriter(out, work.columns, source=writer.source, extends=extends) as beside:
        done = [writer.done, *beside.done]
        total = sum(len(part) for part in work.batches(listed(), done=done))
        if not total:
            return 0
        batches = (_batch(corpus, part) for part in work.batches(listed(), done=done))
        how = {"extractor": work.extractor, "options": work.options, "gpu": work.gpu}
        with ray_session(), waiting_for_cores(1), closing(stream(batches, **how)) as rows:
            with waiting(f"the first {work.unit}: workers of Ray start and load the backbone", after=5.0):
                first = [*islice(rows, 1)]
            for row in Progress(chain(first, rows), desc="extract", total=total, unit=work.unit):
                id, where = row["id"], f"id {row['id']}, {row['path']}"
                if row["why"]:
                    writer.note(Skipped(where=where, why=row["why"]))
                    continue
                frames += row.get("frames", 0)
                x_ND, columns = parted(row["x_NW"], work.columns)
                beside.offer(writer, id, x_ND, columns, where=where)
                if length := row.get("odd"):
                    why = (
                        "a clip that is longer or shorter than the seconds in its id: is it the whole video?"
                    )
                    writer.note(Flagged(where=f"{where}, {length}", why=why))
    return frames
