"""Extract features of the images, videos or texts of a corpus to a feature store, with Ray workers.

polypool extract --corpus DIR --backbone 'cells(grid=7)' --out DIR
polypool extract --video --corpus DIR --backbone 'cells(grid=3)' --out DIR
polypool extract --texts --corpus DIR --backbone 'bert(name="bert-base-uncased")' --out DIR

Ray's workers decode and encode the files; the store is written here, in the order of the corpus, so the same files give
the same bytes. Repeat an interrupted command to resume it.
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
    """Extract features of the images, videos or texts of a corpus to a feature store.

    Files that are missing or do not decode are skipped, counted and listed. Equal texts are stored once; a text's id is
    its SHA-256. The manifest has the feature statistics of the training split. Repeat an interrupted command to resume
    it; with other `--splits`, or a larger `--limit`, the command adds to an existing store.

    Args:
        corpus: folder of the corpus, as written by ingest, or its URL.
        out: folder of the store, or its URL.
        backbone: model of an image or a frame: cells, clip, dinov2, resnet, siglip or vit, with parameters, such as
            'cells(grid=7)'; or of regions with boxes: detr, owlv2 or rtdetr; or of all frames of a video: i3d; or of a
            text: bert, clip_text, decoder or siglip_text; or your own.
        dtype: dtype of the stored features.
        batch: batch size: images, texts, or frames of one video per forward pass.
        splits: splits to extract, or to add.
        limit: only the first images, videos or questions of each of these splits; of texts, their captions.
        video: the files of the corpus are videos.
        texts: encode the captions or questions of the corpus instead of its files.
        videos: options for reading videos.
        tolerance: limits on skipped files and warnings.

    Raises:
        InputError: no corpus, an unknown backbone or split, a finished store in `out` that already has all of this or
            was made with other settings, a backbone for another kind of input, no usable image, video or text, or more
            skipped files than tolerated.
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
    """Print the content of a store, the time it took, and the skipped files."""
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
    """Remove some options and their values from a command line."""
    kept, within = list[str](), False
    for word in words:
        if word.startswith("--"):
            within = word.partition("=")[0] in options
        kept += [] if within else [word]
    return kept


@command
def main() -> None:
    """Extract as requested on the command line."""
    tyro.cli(extract, prog="polypool extract")
