"""What ingest prints when it has written a corpus or a store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from infra.storage.places import Url, place
from infra.store.findings import SKIPPED, WARNINGS, Tolerance, describe
from infra.store.manifest import Manifest
from tasks.datasets.corpus import FORMAT, CorpusSummary
from tasks.datasets.published import Published, compare_counts
from tasks.datasets.questions import FORMAT as QUESTIONS
from tasks.datasets.questions import QuestionSummary
from tasks.datasets.tables import Format

Tolerate = Annotated[Tolerance, tyro.conf.arg(name="")]  # its fields are flags of the verb


def report_corpus(out: Path | Url, summary: CorpusSummary, *, published: Sequence[Published]) -> None:
    """Say how many items and captions a corpus has, whether they are those published, and what was left out or is odd.

    Args:
        out: the corpus.
        summary: what it holds.
        published: the data sets that it may be; none where that is not known.
    """
    splits = ", ".join(f"{split} {count:,}" for split, count in summary.splits.items())
    print(f"{place(out)}: {sum(summary.splits.values()):,} items ({splits}), {summary.captions:,} captions")
    if published:
        print(compare_counts(published, summary.splits, captions=summary.captions))
    report_findings(out, skipped=summary.skipped, flagged=summary.flagged, form=FORMAT)


def report_questions(out: Path | Url, summary: QuestionSummary, *, published: Sequence[Published]) -> None:
    """Say how many questions about how many images a corpus has; see `report_corpus`."""
    splits = ", ".join(
        f"{split} {count:,} about {summary.images[split]:,} images" for split, count in summary.splits.items()
    )
    print(f"{place(out)}: {sum(summary.splits.values()):,} questions ({splits})")
    if published:
        print(compare_counts(published, summary.splits))
    report_findings(out, skipped=summary.skipped, flagged=summary.flagged, form=QUESTIONS)


def report_store(out: Path | Url, manifest: Manifest) -> None:
    """Say what a store holds, and what was left out."""
    print(f"{place(out)}: {content(manifest)}")
    report_findings(out, skipped=manifest.skipped, flagged=manifest.flagged)


def content(manifest: Manifest) -> str:
    """Return the numbers of a store in words."""
    size = sum(shard.bytes for shard in manifest.shards)
    numbers = f"{manifest.vectors:,} vectors of {manifest.dim} x {manifest.dtype}"
    return f"{manifest.sets:,} sets, {numbers}, {size:,} bytes in {len(manifest.shards)} files"


def report_findings(
    out: Path | Url, *, skipped: dict[str, Any], flagged: dict[str, Any], form: Format | None = None
) -> None:
    """Say what was left out, what is used and odd, and where both are listed.

    Args:
        out: what was written.
        skipped: as `Findings.skipped` has it.
        flagged: as `Findings.flagged` has it.
        form: of a corpus; None for a store.
    """
    out = place(out)
    print(describe(skipped))
    if skipped["count"]:
        print(f"  all of them: {out / (form.skipped if form else SKIPPED)}")
    if flagged["count"]:
        print(describe(flagged, "warnings"))
        print(f"  all of them: {out / (form.warnings if form else WARNINGS)}")
