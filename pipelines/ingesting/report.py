"""What ingest prints when it has written a corpus or a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infra.store.manifest import Manifest
from infra.store.skipped import describe
from tasks.datasets.corpus import FORMAT, CorpusSummary


def report_corpus(out: Path, summary: CorpusSummary) -> None:
    """Say how many items and captions a corpus has, and what was left out."""
    splits = ", ".join(f"{split} {count:,}" for split, count in summary.splits.items())
    print(f"{out}: {sum(summary.splits.values()):,} items ({splits}), {summary.captions:,} captions")
    report_skipped(out / FORMAT.skipped, summary.skipped)


def report_store(out: Path, manifest: Manifest) -> None:
    """Say what a store holds, and what was left out."""
    print(f"{out}: {content(manifest)}")
    report_skipped(out / "skipped.jsonl", manifest.skipped)


def content(manifest: Manifest) -> str:
    """Return the numbers of a store in words."""
    size = sum(shard.bytes for shard in manifest.shards)
    numbers = f"{manifest.vectors:,} vectors of {manifest.dim} x {manifest.dtype}"
    return f"{manifest.sets:,} sets, {numbers}, {size:,} bytes in {len(manifest.shards)} files"


def report_skipped(listing: Path, skipped: dict[str, Any]) -> None:
    """Say what was left out, and where it is listed."""
    print(describe(skipped))
    if skipped["count"]:
        print(f"  all of them: {listing}")
