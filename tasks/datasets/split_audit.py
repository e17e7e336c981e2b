"""Items and texts that splits of a corpus share, which would make memorised samples count as understood."""

from __future__ import annotations

import hashlib
import os
import stat
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import compress, repeat
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

from polypool.infra.files import sha256
from polypool.infra.store.findings import Flagged
from polypool.infra.store.ids import IdSet

Batches = Callable[[], Iterable[pa.RecordBatch]]
"""Reads the batches of a corpus's table, again with each call; texts are compared by their hashes of 64 bits."""
_FITTED = ("train", "val")  # a model is fitted to the first and chosen by the second
_PIECE = 4096  # bytes from the middle of a file, which tell most files of one size apart


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
    """Return the distinct hashes of texts, sorted."""
    found = [np.unique(_hashed(each)) for each in texts]
    return np.unique(np.concatenate([np.empty(0, np.int64), *found]))


def _hashed(texts: pa.Array) -> np.ndarray:
    return np.fromiter(map(hash, texts.to_pylist()), np.int64, len(texts))


def _found(texts: pa.Array, known: np.ndarray) -> list[int]:
    """Return the places of the texts whose hashes are among the sorted ones."""
    hashed = _hashed(texts)
    at = np.minimum(known.searchsorted(hashed), len(known) - 1)
    return np.flatnonzero(known[at] == hashed).tolist()


def shared_files(batches: Batches, *, id: str, images: str | Path) -> Iterator[Flagged]:
    """Yield the pictures and videos that have the same bytes as another in a split that models learn from.

    Files of one size alone are opened, and those whose middle differs are not read to the end. The column `id` names
    the picture.
    """
    if not _pairs(batches) or next(_pictures(batches, id), None) is None:
        return
    wanted: Iterable[bool] = repeat(True)
    codes, keys = dict[str, int](), np.empty(0, np.int64)
    for desc, key_of in (("sizes", _size), ("middles", _middle), ("same pictures", _sha256)):
        found, splits, places = array("q"), array("b"), array("q")
        pictures = compress(enumerate(_pictures(batches, id)), wanted)
        for place, (_, split, path) in tqdm(pictures, desc=desc, unit="file", leave=False):
            with suppress(OSError, ValueError):  # gone or unreadable: `extract` says so
                if (key := key_of(os.path.join(images, path))) is not None:
                    found.append(hash(key))
                    splits.append(codes.setdefault(split, len(codes)))
                    places.append(place)
        keys = np.frombuffer(found, np.int64)
        alike = _alike(keys, np.frombuffer(splits, np.int8), codes)
        if not alike.any():
            return
        keys, at = keys[alike], np.frombuffer(places, np.int64)[alike]
        wanted = np.zeros(int(at[-1]) + 1, bool)
        wanted[at] = True
    groups: dict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for key, (name, split, _) in zip(keys, compress(_pictures(batches, id), wanted), strict=True):
        groups[key][split].append(name)
    for names in groups.values():
        for fitted, other in _ordered(names):
            for name in names[other]:
                if twin := next((twin for twin in names[fitted] if twin != name), None):
                    where, why = f"id {name}, as id {twin}", f"the same picture in {fitted} and {other}"
                    yield Flagged(where=where, why=why)


def _pictures(batches: Batches, id: str) -> Iterator[tuple[str, str, str]]:
    """Yield the name, split and path of each picture of each split once."""
    seen = IdSet()
    for batch in batches():
        for picture in zip(*(batch[name].to_pylist() for name in (id, "split", "path")), strict=True):
            if picture[-1] and seen.add("\0".join(picture)):
                yield picture


def _alike(keys: np.ndarray, splits: np.ndarray, codes: dict[str, int]) -> np.ndarray:
    """Return which keys are both in a split that models learn from and in another."""
    alike = np.zeros(len(keys), bool)
    for fitted, other in _ordered(codes):
        first, second = (splits == codes[split] for split in (fitted, other))
        both = np.intersect1d(keys[first], keys[second])
        alike |= (first | second) & np.isin(keys, both)
    return alike


def _size(path: str) -> int | None:
    found = os.stat(path)
    return found.st_size if stat.S_ISREG(found.st_mode) and found.st_size else None


def _middle(path: str) -> bytes:
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size // 2 - _PIECE // 2))
        return hashlib.sha256(file.read(_PIECE)).digest()


def _sha256(path: str) -> str:
    return sha256(Path(path))


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
