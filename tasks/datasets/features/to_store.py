"""From a reader of published features to a feature store, whatever the format."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from infra.errors import InputError
from infra.storage.destination import write_json
from infra.storage.places import Url
from infra.store import FeatureStore, StoreWriter
from infra.store.columns import ColumnsWriter, with_columns
from infra.store.findings import USUAL, Findings, Flagged, Skipped, Tolerance, describe
from infra.store.manifest import Manifest
from tasks.datasets.corpus import Corpus
from tasks.datasets.questions import QuestionCorpus

SHARD_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True)
class Features:
    """The set of one image or video.

    Attributes:
        id: of the image or video.
        x_ND: `(N, D)`.
        where: it was read, for messages.
        columns: what stands beside the vectors, `(N, C)` each, by name; the same names for all sets of a reader.
        odd: what is to be said of it, though it is stored.
    """

    id: str
    x_ND: np.ndarray
    where: str
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    odd: str = ""


def as_set(x: np.ndarray, *, channels_first: bool = False) -> np.ndarray:
    """Return an array as a set `(N, D)`: the last axis is D, and all others are elements.

    So `(N, D)`, `(1, N, D)`, a grid `(H, W, D)` and a single vector `(D,)` need no option; maps as
    convolutions give them, `(D, H, W)` or `(1, D, H, W)`, need `channels_first`.
    """
    if channels_first and x.ndim >= 3:
        x = np.moveaxis(x, -3, -1)
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def write_features(
    folder: str | Path | Url,
    sets: Iterable[Features | Skipped],
    *,
    source: dict[str, Any],
    dtype: str = "float16",
    shard_bytes: int = SHARD_BYTES,
    tolerance: Tolerance = USUAL,
) -> Manifest:
    """Write a store of what a reader yields; the first set says how wide all are to be.

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
    dim = first.x_ND.shape[1]
    widths = {name: x_NC.shape[1] for name, x_NC in first.columns.items()}
    source = with_columns(source, widths)
    with StoreWriter(folder, dim=dim, dtype=dtype, source=source, shard_bytes=shard_bytes) as writer:
        with ColumnsWriter(folder, widths, source=source) as beside:
            for entry in chain(skipped, [first], sets):
                if isinstance(entry, Skipped):
                    writer.note(entry)
                    continue
                why = beside.offer(writer, entry.id, entry.x_ND, entry.columns, where=entry.where)
                if why is None and entry.odd:
                    writer.note(Flagged(where=entry.where, why=entry.odd))
        return writer.close(tolerance=tolerance)


def _first(sets: Iterator[Features | Skipped]) -> tuple[list[Skipped], Features | None]:
    """Take what comes up to the first set that has any numbers."""
    skipped: list[Skipped] = []
    for entry in sets:
        if isinstance(entry, Features) and entry.x_ND.size:
            return skipped, entry
        skipped.append(
            entry if isinstance(entry, Skipped) else Skipped(where=entry.where, why="an empty set")
        )
    return skipped, None


def cross_check(
    store: FeatureStore, corpus: Corpus | QuestionCorpus, *, listing: Path | Url
) -> dict[str, list[str]]:
    """Return the ids with `captions only`, or `questions only`, and with `features only`; write them to `listing`."""
    apart = {
        f"{corpus.texts} only": _missing(corpus.ids, store.ids),
        "features only": _missing(store.ids, corpus.ids),
    }
    write_json(listing, apart)
    return apart


def _missing(ids: Any, there: Any) -> list[str]:
    return ids.filter(pc.invert(pc.is_in(ids, value_set=there))).to_pylist()
