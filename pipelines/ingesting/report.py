"""What ingest prints when it has written a corpus or a store, and how ids are compared."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from infra.store import FeatureStore
from infra.store.manifest import Manifest
from infra.store.skipped import Skipped, describe
from tasks.datasets.corpus import FORMAT, Summary
from tasks.datasets.features.to_store import Features, cross_check, write_features
from tasks.datasets.open_corpus import open_corpus


def store_features(
    sets: Iterable[Features | Skipped], *, out: Path, source: dict[str, Any], dtype: str, corpus: Path | None
) -> None:
    """Write a store and say what it holds; where a corpus is given, compare the ids with its own."""
    reference = open_corpus(corpus) if corpus else None
    report_store(out, write_features(out, sets, source=source, dtype=dtype))
    if reference:
        listing = out / "unmatched.json"
        for kind, ids in cross_check(FeatureStore.open(out), reference, listing=listing).items():
            examples = f" such as {', '.join(ids[:3])}, all in {listing}" if ids else ""
            print(f"ids with {kind}: {len(ids):,}{examples}")


def report_corpus(out: Path, summary: Summary) -> None:
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
