"""Turn the images, videos or texts of a corpus into a feature store, with workers of Ray.

polypool extract --corpus DIR --backbone 'cells(grid=7)' --out DIR
polypool extract --video --corpus DIR --backbone 'cells(grid=3)' --out DIR
polypool extract --texts --corpus DIR --backbone 'bert(name="bert-base-uncased")' --out DIR

They are decoded and described by Ray's workers; the store is written here, in the order of the corpus, so the same
files give the same bytes. A run that was stopped goes on where it was when it is started again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro

from polypool.infra.paths import keep_out_of_jobs
from polypool.infra.process.command import command
from polypool.infra.process.output import print_next
from polypool.infra.store.findings import USUAL
from polypool.pipelines.data import extraction
from polypool.pipelines.data.extraction import VIDEO_DEFAULTS, Extracted, VideoOptions
from polypool.pipelines.data.ingestion import Tolerate, after_extraction, report_findings


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
    videos: tyro.conf.OmitArgPrefixes[VideoOptions] = VIDEO_DEFAULTS,
    tolerance: Tolerate = USUAL,
) -> None:
    """Turn the images, videos or texts of a corpus into a feature store.

    One that is missing or does not decode is skipped, counted and listed. A text is stored once, wherever it stands;
    its id is its SHA-256. The manifest has the statistics of the training split's features. Run again after an
    interruption, it goes on where it stopped; with other `--splits`, or a larger `--limit`, it adds to a store that is
    there.

    Args:
        corpus: folder of the corpus, as ingest writes it, or its URL.
        out: folder of the store, or its URL.
        backbone: what describes an image or a frame: cells, clip, dinov2, resnet, siglip or vit, with parameters, such
            as 'cells(grid=7)'; or its regions: detr, owlv2 or rtdetr, with their boxes; or all frames of a video: i3d;
            or a text: bert, clip_text, decoder or siglip_text; or your own.
        dtype: what numbers are stored as.
        batch: images, texts, or frames of one video, that go through the backbone together.
        splits: the splits to extract, or to add.
        limit: take only the first images, videos or questions of each of these splits; of texts, the captions of
            these.
        video: the files of the corpus are videos.
        texts: describe the captions or questions of the corpus, not its files.
        videos: how they are read.
        tolerance: what may be left out or odd.

    Raises:
        InputError: no corpus, an unknown backbone or split, a finished store in `out` that has all of this or was made
            otherwise, a backbone that reads something else, no usable image, video or
            text, or more were left out than the tolerance lets pass.
    """
    done = extraction.extract(
        corpus=corpus,
        out=out,
        backbone=backbone,
        dtype=dtype,
        batch=batch,
        splits=splits,
        limit=limit,
        video=video,
        texts=texts,
        videos=videos,
        tolerance=tolerance,
    )
    _report(out, done)
    words = _without(sys.argv[1:], "--splits", "--limit")
    print_next(*after_extraction(out, corpus, done.manifest, words=words, texts=texts))


def _report(out: Path, done: Extracted) -> None:
    """Print what a store holds, how long it took, and what was left out."""
    keep_out_of_jobs(out)
    manifest, seconds = done.manifest, done.seconds
    size = sum(shard.bytes for shard in manifest.shards)
    numbers = f"{manifest.vectors:,} vectors of {manifest.dim} x {manifest.dtype}, {size:,} bytes"
    print(f"{out}: {manifest.sets:,} {done.unit}s, {numbers}")
    frames = f" and {done.frames / seconds:.1f} frames" if done.frames else ""
    speed = f"{done.new / seconds:.1f} {done.unit}s{frames}"
    print(f"{done.new:,} of them now, in {seconds:.1f} seconds: {speed} a second")
    report_findings(out, manifest)


def _without(words: Sequence[str], *options: str) -> list[str]:
    """Return the words of a command line without some options and their values."""
    kept, within = list[str](), False
    for word in words:
        if word.startswith("--"):
            within = word.partition("=")[0] in options
        kept += [] if within else [word]
    return kept


@command
def main() -> None:
    """Extract what the command line says."""
    tyro.cli(extract, prog="polypool extract")
