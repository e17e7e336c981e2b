"""Published features into a feature store."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from polypool.infra.errors import InputError
from polypool.infra.storage import Url, write_bytes
from polypool.infra.store import FeatureStore, StoreWriter
from polypool.infra.store.columns import ColumnsWriter, with_columns
from polypool.infra.store.findings import USUAL, Findings, Flagged, Skipped, Tolerance, describe
from polypool.infra.store.manifest import Manifest
from polypool.tasks.datasets import Features
from polypool.tasks.datasets.corpus import Corpus
from polypool.tasks.datasets.questions import QuestionCorpus

SHARD_BYTES = 256 << 20


def write_features(
    folder: str | Path | Url,
    sets: Iterable[Features | Skipped],
    *,
    source: dict[str, Any],
    dtype: str = "float16",
    shard_bytes: int = SHARD_BYTES,
    tolerance: Tolerance = USUAL,
    training: Iterable[str] = (),
    replace: bool = False,
) -> Manifest:
    """Write a store of what a reader yields; all sets must be as wide as the first.

    Unfinished work of another `ingest` in the folder gives way.

    Args:
        folder, source, dtype, shard_bytes: as of `StoreWriter`.
        sets: what a reader yields.
        tolerance: what may be left out or odd.
        training: ids of the training split, of whose sets the manifest gets the statistics.
        replace: a complete store in the folder gives way, too.

    Raises:
        InputError: nothing usable came, the tolerance is exceeded, the folder holds another store, or no space is left.
    """
    sets = iter(sets)
    skipped, first = _first(sets)
    if first is None:
        findings = Findings()
        for case in skipped:
            findings.add(case)
        raise InputError(f"{folder}: nothing usable was found; {describe(findings.skipped)}")
    widths = {name: x_NC.shape[1] for name, x_NC in first.columns.items()}
    source, dim = with_columns(source, widths), first.x_ND.shape[1]
    replaces = "complete" if replace else "unfinished"
    with StoreWriter(
        folder, dim=dim, dtype=dtype, source=source, shard_bytes=shard_bytes, replaces=replaces
    ) as writer:
        with ColumnsWriter(folder, widths, source=source) as beside:
            for entry in chain(skipped, [first], sets):
                if isinstance(entry, Skipped):
                    writer.note(entry)
                    continue
                why = beside.offer(writer, entry.id, entry.x_ND, entry.columns, where=entry.where)
                if why is None and entry.odd:
                    writer.note(Flagged(where=entry.where, why=entry.odd))
        return writer.close(statistics_of=training, tolerance=tolerance)


def _first(sets: Iterator[Features | Skipped]) -> tuple[list[Skipped], Features | None]:
    """Take what comes up to the first set that has any numbers."""
    skipped: list[Skipped] = []
    for entry in sets:
        if isinstance(entry, Features) and entry.x_ND.size:
            return skipped, entry
        empty = Skipped(where=entry.where, why="an empty set")
        skipped.append(entry if isinstance(entry, Skipped) else empty)
    return skipped, None


def cross_check(
    store: FeatureStore, corpus: Corpus | QuestionCorpus, *, listing: Path | Url
) -> dict[str, list[str]]:
    """Return the ids with `captions only`, or `questions only`, and with `features only`; write them to `listing`."""
    apart = {
        f"{corpus.texts} only": _missing(corpus.ids, store.ids),
        "features only": _missing(store.ids, corpus.ids),
    }
    write_bytes(listing, (json.dumps(apart, indent=1) + "\n").encode())
    return apart


def _missing(ids: Any, there: Any) -> list[str]:
    return ids.filter(pc.invert(pc.is_in(ids, value_set=there))).to_pylist()
