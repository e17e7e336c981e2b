"""Items and texts that splits of a corpus share, which would make memorised samples count as understood."""

from __future__ import annotations

import hashlib
import os
import stat
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

from polypool.infra.files import sha256
from polypool.infra.store.findings import Flagged

_FITTED = ("train", "val")  # a model is fitted to the first and chosen by the second
_PIECE = 4096  # bytes from the middle of a file, which tell most files of one size apart


def shared_captions(table: pa.Table) -> Iterator[Flagged]:
    """Yield the captions of a corpus's table that are also, letter by letter, in a split that models learn from."""
    for fitted, other in _pairs(table):
        known, held = (_of(table, split).combine_chunks() for split in (fitted, other))
        texts, rows = pc.list_flatten(held["captions"]), pc.list_parent_indices(held["captions"])
        found = pc.is_in(texts, value_set=pc.list_flatten(known["captions"]).combine_chunks())
        starts = pc.list_value_length(held["captions"]).to_numpy().cumsum()
        for place in pc.indices_nonzero(found).to_pylist():
            row = rows[place].as_py()
            number = place - (int(starts[row - 1]) if row else 0) + 1
            where = f"id {held['id'][row]}, caption {number}"
            yield Flagged(where=where, why=f"the same caption in {fitted} and {other}")


def shared_images(table: pa.Table) -> Iterator[Flagged]:
    """Yield the questions of a corpus's table whose image has questions in a split that models learn from, too."""
    for fitted, other in _pairs(table):
        held = _of(table, other)
        known = pc.unique(_of(table, fitted)["image_id"])
        both = held.filter(pc.is_in(held["image_id"], value_set=known))
        for id, image in zip(both["id"].to_pylist(), both["image_id"].to_pylist(), strict=True):
            where = f"question {id}, image {image}"
            yield Flagged(where=where, why=f"a question whose image is in {fitted} and {other}")


def shared_files(table: pa.Table, *, id: str, images: str | Path) -> Iterator[Flagged]:
    """Yield the pictures and videos that have the same bytes as another in a split that models learn from.

    Files of one size alone are opened, and those whose middle differs are not read to the end. The column `id` names
    the picture.
    """
    names, splits, paths = (table[column].to_pylist() for column in (id, "split", "path"))
    pictures = dict.fromkeys(
        (name, split, path) for name, split, path in zip(names, splits, paths, strict=True) if path
    )
    files = [(name, split, os.path.join(images, path)) for name, split, path in pictures]
    groups = [files] if files and _pairs(table) else []
    for desc, key_of in (("sizes", _size), ("middles", _middle), ("same pictures", _sha256)):
        with tqdm(total=sum(map(len, groups)), desc=desc, unit="file", disable=not groups) as bar:
            groups = [alike for group in groups for alike in _alike(group, key_of, bar)]
    for group in groups:
        names: dict[str, list[str]] = defaultdict(list)
        for name, split, _ in group:
            names[split].append(name)
        for fitted, other in _ordered(names):
            for name in names[other]:
                if twin := next((twin for twin in names[fitted] if twin != name), None):
                    where, why = f"id {name}, as id {twin}", f"the same picture in {fitted} and {other}"
                    yield Flagged(where=where, why=why)


_File = tuple[str, str, str]  # the name of a picture, its split and its path


def _alike(group: list[_File], key_of: Callable[[str], Hashable], bar: tqdm) -> list[list[_File]]:
    """Return the files of one key that are both in a split that models learn from and in another, as groups."""
    groups: dict[Hashable, list[_File]] = defaultdict(list)
    for file in group:
        bar.update()
        with suppress(OSError, ValueError):  # gone or unreadable: `extract` says so
            if (key := key_of(file[2])) is not None:
                groups[key].append(file)
    return [alike for alike in groups.values() if _ordered({split for _, split, _ in alike})]


def _size(path: str) -> int | None:
    found = os.stat(path)
    return found.st_size if stat.S_ISREG(found.st_mode) and found.st_size else None


def _middle(path: str) -> bytes:
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size // 2 - _PIECE // 2))
        return hashlib.sha256(file.read(_PIECE)).digest()


def _sha256(path: str) -> str:
    return sha256(Path(path))


def _pairs(table: pa.Table) -> list[tuple[str, str]]:
    return _ordered(pc.unique(table["split"]).to_pylist())


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


def _of(table: pa.Table, split: str) -> pa.Table:
    return table.filter(pc.equal(table["split"], split))
