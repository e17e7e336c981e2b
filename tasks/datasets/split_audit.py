"""Items and texts that splits of a corpus share, which would make memorised samples count as understood."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from polypool.infra.store.findings import Flagged

Batches = Callable[[], Iterable[pa.RecordBatch]]
"""Reads the batches of a corpus's table, again with each call; texts are compared by their hashes of 64 bits."""
_FITTED = ("train", "val")  # a model is fitted to the first and chosen by the second


def shared_captions(batches: Batches) -> Iterator[Flagged]:
    """Yield the captions of a corpus's table that are also, letter by letter, in a split that models learn from."""
    for fitted, other in _pairs(batches):
        known = _hashes(pc.list_flatten(batch["captions"]) for batch in _of(batches, fitted))
        for batch in _of(batches, other):
            texts, rows = pc.list_flatten(batch["captions"]), pc.list_parent_indices(batch["captions"])
            starts = pc.list_value_length(batch["captions"]).to_numpy().cumsum()
            for place in _found(texts, known):
                row = rows[place].as_py()
                number = place - (int(starts[row - 1]) if row else 0) + 1
                where = f"id {batch['id'][row]}, caption {number}"
                yield Flagged(where=where, why=f"the same caption in {fitted} and {other}")


def shared_images(batches: Batches) -> Iterator[Flagged]:
    """Yield the questions of a corpus's table whose image has questions in a split that models learn from, too."""
    for fitted, other in _pairs(batches):
        known = _hashes(batch["image_id"] for batch in _of(batches, fitted))
        for batch in _of(batches, other):
            for row in _found(batch["image_id"], known):
                where = f"question {batch['id'][row]}, image {batch['image_id'][row]}"
                yield Flagged(where=where, why=f"a question whose image is in {fitted} and {other}")


def _hashes(texts: Iterable[pa.Array]) -> np.ndarray:
    """Return the hashes of texts, sorted."""
    held = array("q")
    for each in texts:
        held.frombytes(_hashed(each).tobytes())
    found = np.frombuffer(held, np.int64)
    found.sort()
    return found


def _hashed(texts: pa.Array) -> np.ndarray:
    return np.fromiter(map(hash, texts.to_pylist()), np.int64, len(texts))


def _found(texts: pa.Array, known: np.ndarray) -> list[int]:
    """Return the places of the texts whose hashes are among the sorted ones."""
    if not len(known):
        return []
    hashed = _hashed(texts)
    at = np.minimum(known.searchsorted(hashed), len(known) - 1)
    return np.flatnonzero(known[at] == hashed).tolist()


def shared_files(batches: Batches, *, id: str) -> Iterator[Flagged]:
    """Yield the pictures and videos that have the same bytes as another in a split that models learn from.

    The column `id` names the picture, and `sha256` is empty where there is no file.
    """
    for fitted, other in _pairs(batches):
        in_fitted, in_other = (
            _hashes(batch["sha256"] for batch in _files(batches, split)) for split in (fitted, other)
        )
        both = np.intersect1d(in_fitted, in_other)
        twins: dict[str, list[str]] = defaultdict(list)
        for name, digest in _once(batches, fitted, id, both):
            if len(twins[digest]) < 2:  # one of two has another name than a picture of the other split
                twins[digest].append(name)
        for name, digest in _once(batches, other, id, both):
            if twin := next((twin for twin in twins[digest] if twin != name), None):
                yield Flagged(
                    where=f"id {name}, as id {twin}", why=f"the same picture in {fitted} and {other}"
                )


def _files(batches: Batches, split: str) -> Iterator[pa.RecordBatch]:
    for batch in _of(batches, split):
        yield batch.filter(pc.not_equal(batch["sha256"], ""))


def _once(batches: Batches, split: str, id: str, wanted: np.ndarray) -> Iterable[tuple[str, str]]:
    """Return the names and digests of a split's pictures, which several questions may be about, of wanted digests."""
    return dict.fromkeys(
        (batch[id][row].as_py(), batch["sha256"][row].as_py())
        for batch in _files(batches, split)
        for row in _found(batch["sha256"], wanted)
    )


def _pairs(batches: Batches) -> list[tuple[str, str]]:
    return _ordered(
        dict.fromkeys(split for batch in batches() for split in pc.unique(batch["split"]).to_pylist())
    )


def _ordered(splits: Iterable[str]) -> list[tuple[str, str]]:
    """Return the pairs of a split that models learn from and another; of train and val, train is that."""
    present = list(splits)
    return [
        (fitted, other)
        for place, fitted in enumerate(_FITTED)
        if fitted in present
        for other in present
        if other not in _FITTED[: place + 1]
    ]


def _of(batches: Batches, split: str) -> Iterator[pa.RecordBatch]:
    """Yield what a split has of each batch, where it has anything."""
    for batch in batches():
        if len(chosen := batch.filter(pc.equal(batch["split"], split))):
            yield chosen
