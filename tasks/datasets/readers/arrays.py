"""Features in array files.

- A folder of `.npy`, `.npz` or `.pth` files, one per image or video, named by its id; the id of `a/b.npy` is `a/b`. Or
  a CSV file of ids and paths, with the columns `id` and `path`.
- An `.npy` file with a row for each image or video, and a file of their ids: `train_ids.txt` for `train_ims.npy`.
- An `.npz` file with an array for each id.

`polypool.tasks.datasets.features.Axes` turns an array into a set. In an `.npz` or `.pth` file of one image or video the
array is named `features` or `x`, or is the only one. In an `.npz` file, `num_bbox`, `num_boxes` or the number of boxes
tells the axis of elements from the width, which is the first axis in OpenVQA's and MCAN's files. D is the most frequent
width.

An `.npz` of regions may have boxes in pixels, `bbox` or `boxes` `(N, 4)`, and the picture's size, `image_w` or
`image_width` and `image_h` or `image_height`. If any of a sample of the files has them, boxes are stored as a column,
with zeros and a warning for missing or invalid ones.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from polypool.infra.errors import InputError
from polypool.infra.pictures import fractions
from polypool.infra.process.progress import Progress
from polypool.infra.registry import READERS
from polypool.infra.store.findings import Skipped
from polypool.tasks.datasets import Features, Reading
from polypool.tasks.datasets.annotations import PICKLED, map_array, read_csv, read_id_rows, unreadable
from polypool.tasks.datasets.features import (
    OTHER_WIDTH,
    PATTERNS,
    ArrayReader,
    Shape,
    files_of,
    mapped_rows,
    named_rows,
)
from polypool.tasks.datasets.readers.folders import files_below

_NAMES = ("features", "x")
_COUNT, _BOX = ("num_bbox", "num_boxes"), ("bbox", "boxes")
_BOXES = (_BOX, ("image_w", "image_width"), ("image_h", "image_height"))
_WHAT, _ROWS = ".npy, .npz or .pth files", "an array of rows, each of an image or video"
_SPLIT = re.compile(r"(train|trn|val|dev|testall|test|tst)([_.-]|$)")
_FEW = 4  # at most this many files named after splits are taken for arrays of rows
_SAMPLE = 200  # approximate number of files read to find the usual width, and whether there are boxes


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """One image or video: its file, and the key of the array in it (empty for `features`, `x` or the only one)."""

    where: str
    id: str
    path: Path
    key: str


@dataclass(frozen=True, kw_only=True)
class _Found:
    """The content of the file of one image or video: the array, its number of elements, and boxes, width, height."""

    x: np.ndarray
    count: int | None = None
    boxes: Sequence[np.ndarray | None] = ()


@READERS.register("arrays")
@dataclass(frozen=True, kw_only=True)
class Arrays(ArrayReader):
    """Read arrays: files named by ids, an .npy of rows and their ids, a CSV of ids and paths, or an .npz of ids."""

    file: tuple[Path, ...] = ()
    """An .npy of rows, an .npz with an array for each id, a CSV (id,path), or several files named by ids."""
    dir: Path | None = None
    """Instead, a folder of .npy, .npz or .pth files named by ids, with or without subfolders."""
    ids: Path | None = None
    """Ids of the rows of one array: .txt, .npy or .json; by default train_ids.txt beside train_ims.npy."""
    key: str = ""
    """The array to take of an .npz or .pth; by default features or x, or the only one."""

    def read(self) -> Reading:
        """Return the sets by file name, or in the order of the rows.

        Unreadable files, files without an array, and vectors of an unusual width are skipped.
        """
        files = files_of(self.file, self.dir, pattern=PATTERNS["arrays"], what=_WHAT)
        listed = hashlib.sha256()
        for path in [*files, *([self.ids] if self.ids else [])]:
            with suppress(OSError):
                status = path.stat()
                listed.update(repr((path.name, status.st_size, status.st_mtime_ns)).encode())
        settings = {name: getattr(self, name) for name in ("key", "channels_first", "channels_last")}
        source = {"count": len(files), "first": files[0].name, "listing": listed.hexdigest()}
        return Reading(rows=self._sets(files), source={"files": [source], **settings})

    def _sets(self, files: list[Path]) -> Iterator[Features | Skipped]:
        ids_files = {} if self.ids else _ids_files(files)
        arrays = [path for path in files if path not in (self.ids, *ids_files.values())]
        ids = dict.fromkeys(arrays, self.ids) if self.ids else ids_files
        if self.ids and len(arrays) > 1:
            raise InputError(
                f"--ids {self.ids}: the ids of one of {len(arrays):,} files; name that file by --file"
            )
        if ids:
            if without := [path for path in arrays if path not in ids]:
                raise self._without_ids(without[0])
            for path in arrays:
                yield from self._of_rows(path, read_id_rows(ids[path]))
        elif len(arrays) == 1 and arrays[0].suffix == ".csv":
            rows = read_csv(arrays[0], columns=("id", "path"))  # relative paths start from the file's folder
            yield from self._of_each(
                [
                    _Entry(where=f"{where} ({name})", id=id, path=arrays[0].parent / name, key=self.key)
                    for where, (id, name) in rows
                ]
            )
        elif len(arrays) == 1 and not self.key and (entries := _members(arrays[0])):
            yield from self._of_each(entries)
        else:
            if len(arrays) == 1 or (len(arrays) <= _FEW and all(_SPLIT.match(path.stem) for path in arrays)):
                raise self._without_ids(arrays[0])
            names = [path.name if self.dir is None else os.path.relpath(path, self.dir) for path in arrays]
            yield from self._of_each(
                [
                    _Entry(where=name, id=os.path.splitext(name)[0], path=path, key=self.key)
                    for path, name in zip(arrays, names, strict=True)
                ]
            )
            for name in sorted({*files_below(self.dir)} - {*names}) if self.dir else ():
                if not f"/{name}".count("/."):
                    yield Skipped(where=name, why=f"not one of {_WHAT}", wanted=False)

    def _without_ids(self, path: Path) -> InputError:
        if isinstance(found := _load(path, key=self.key), str):
            return InputError(f"{path}: {found}" + (f". {_advice(path)}" if PICKLED in found else ""))
        shape = found.x.shape
        return InputError(
            f"{path}: an array of shape {shape}, without the ids of {shape[0]:,} images or videos. Name a .txt, .npy "
            f"or .json file of them by --ids, or call it {path.stem}_ids.txt; files that have one image or video each "
            "are named by its id, or listed in a CSV of id,path that --file names"
        )

    def _of_each(self, entries: Sequence[_Entry]) -> Iterator[Features | Skipped]:
        shapes, boxed = list[Shape](), False
        for entry in entries[:: max(1, len(entries) // _SAMPLE)]:
            if isinstance(found := _load(entry.path, key=entry.key), _Found):
                shapes.append(Shape(found.x.shape, found.count))
                boxed |= bool(found.boxes) and all(box is not None for box in found.boxes)
        axes = self.axes(shapes, where=self.dir or self.file[0])
        names = {entry.where for entry in entries}
        for entry in Progress(entries, desc="files", unit="file"):
            if entry.where.endswith("_info.npy") and entry.where.replace("_info.npy", ".npy") in names:
                yield Skipped(where=entry.where, why="mmf's notes on another file", wanted=False)
                continue
            if isinstance(found := _load(entry.path, key=entry.key), str):
                yield Skipped(where=entry.where, why=found)
                continue
            x_ND = axes.set(found.x, found.count)
            if x_ND.size and x_ND.shape[1] != axes.usual:
                where, why = f"{entry.where}, shape {found.x.shape}", OTHER_WIDTH.format(axes.usual)
                yield Skipped(where=where, why=why)
            elif boxed:
                yield Features.with_boxes(entry.id, x_ND, _boxes(found.boxes, len(x_ND)), where=entry.where)
            else:
                yield Features(id=entry.id, x_ND=x_ND, where=entry.where)

    def _of_rows(self, path: Path, pairs: list[tuple[str, Any]]) -> Iterator[Features | Skipped]:
        """Yield the rows of an array under their ids; an equal row that repeats the previous id is skipped.

        Raises:
            InputError: an unreadable file, or another number of ids than of rows.
        """
        if path.suffix == ".npy":
            rows = map_array(path, what=_ROWS)
        elif isinstance(found := _load(path, key=self.key), str):
            raise InputError(f"{path}: {found}")
        else:
            rows = found.x
        is_list = [row for _, row in pairs] == [*range(len(pairs))]
        if is_list and len(pairs) > len(rows):  # such as one id per caption
            pairs = [pair for n, pair in enumerate(pairs) if not n or pair[0] != pairs[n - 1][0]]
            pairs = [(id, row) for row, (id, _) in enumerate(pairs)]
        if is_list and len(pairs) != len(rows):
            raise InputError(
                f"{path}: {len(rows):,} rows, and {len(pairs):,} ids; name a file of as many by --ids"
            )
        names = yield from named_rows(pairs, len(rows))
        axes, last = self.axes([Shape(rows.shape[1:] or (1,))], where=path), ("", np.empty(0))
        mapped = mapped_rows(path, what=_ROWS) if path.suffix == ".npy" else rows
        for row, x in enumerate(Progress(mapped, desc=path.name, unit="row", total=len(rows))):
            where, id = f"{path.name}, row {row}", names.get(row)
            if id is None:
                yield Skipped(where=where, why="a row that has no id")
            elif id == last[0] and np.array_equal(last[1], x):
                yield Skipped(where=where, why="the row before once more", wanted=False)
            else:
                last = id, x
                yield Features(id=id, x_ND=axes.set(np.atleast_1d(x)), where=f"{where} (id {id})")


def _ids_files(files: Sequence[Path]) -> dict[Path, Path]:
    """Return the files of ids for arrays of rows: `train_ids.txt` for `train_ims.npy`, `ids.txt` for a single array."""
    known, found = {*files}, {}
    for path in files:
        if path.suffix not in (".npy", ".npz", ".pt", ".pth"):
            continue
        stems = [f"{path.stem}_ids", f"{path.stem.rpartition('_')[0]}_ids"]
        for stem in [*stems, *(["ids"] if len(known) <= 2 else [])]:
            for ending in (".txt", ".json", ".npy"):
                if (ids := path.with_name(stem + ending)) != path and ids.is_file():
                    found.setdefault(path, ids)
    return {path: ids for path, ids in found.items() if path not in found.values()}


def _members(path: Path) -> list[_Entry]:
    """Return the images or videos of an archive with an array for each; empty for other files.

    Raises:
        InputError: a pickle.
    """
    if path.suffix in (".pkl", ".pickle"):
        raise InputError(f"{path}: {PICKLED}. {_advice(path)}")
    if path.suffix == ".npz":
        with suppress(Exception):  # `_load` reports what is wrong
            names = _archive(path).files
            if len(names) > 1 and _name(names, "") is None:
                return [_Entry(where=f"{path.name}, {id}", id=id, path=path, key=id) for id in names]
    return []


def _advice(path: Path) -> str:
    """Return a command that turns a mapping in a pickle, or in an `.npy` file of objects, into an archive."""
    name = json.dumps(str(path))
    read = f"n.load({name}, allow_pickle=True).item()"
    if path.suffix != ".npy":
        read = f'pickle.load(open({name}, "rb"))'
    code = (
        f"import pickle, numpy as n; x = {read}; "
        'n.savez("features.npz", **{str(k): n.asarray(v) for k, v in x.items()})'
    )
    return (
        "If you trust it and it is a mapping of ids to arrays, this writes one that --file features.npz reads: "
        f"python -c {shlex.quote(code)}"
    )


@lru_cache(maxsize=1)
def _archive(path: Path) -> np.lib.npyio.NpzFile:
    return np.load(path, allow_pickle=False)


def _name(names: Sequence[str], key: str) -> str | None:
    """Return the name of the array to read; None if it is ambiguous or missing."""
    for name in (key,) if key else _NAMES:
        if name in names:
            return name
    return names[0] if len(names) == 1 and not key else None


def _count(arrays: np.lib.npyio.NpzFile) -> int | None:
    """Return the number of regions by an archive's `num_bbox`, `num_boxes` or boxes, or None."""
    found = _first_of(arrays, _COUNT)
    if found is not None and found.size == 1 and found.dtype.kind in "iu":
        return int(found.item())
    box_N4 = _first_of(arrays, _BOX)
    return len(box_N4) if box_N4 is not None and box_N4.ndim == 2 else None


def _load(path: Path, *, key: str) -> _Found | str:
    """Return the content of the file of one image or video, or the reason for skipping it.

    No pickle is loaded, except by torch's restricted unpickler (`weights_only`).
    """
    if not path.is_file():  # opening a pipe would wait for a writer
        return "no file, but a folder, a pipe, or a link that leads nowhere"
    try:
        if path.suffix in (".pt", ".pth"):
            import torch  # slow, and `ingest --help` does not need it

            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        else:
            loaded = (
                _archive(path) if path.suffix == ".npz" else np.load(path, mmap_mode="r", allow_pickle=False)
            )
        if isinstance(loaded, Mapping):
            if (name := _name([*loaded], key)) is None:
                choices = ", ".join(map(str, [*loaded][:5]))
                return f"{len(loaded)} arrays, none called {' or '.join(_NAMES)}; --key names one, such as of {choices}"
            x = loaded[name]
        else:
            x = loaded
        if not isinstance(x, np.ndarray):
            x = (x.float() if str(x.dtype) == "torch.bfloat16" else x).numpy()
    except Exception as error:  # many types, from zip, decompression, torch or numpy
        return unreadable(path, error)
    if not x.ndim:
        return "no array, or one of a single number"
    if not isinstance(loaded, np.lib.npyio.NpzFile):
        return _Found(x=x)
    return _Found(x=x, count=_count(loaded), boxes=[_first_of(loaded, names) for names in _BOXES])


def _first_of(arrays: np.lib.npyio.NpzFile, names: Sequence[str]) -> np.ndarray | None:
    """Return the first array with one of these names; None if it is missing or unreadable."""
    with suppress(Exception):
        return next((arrays[name] for name in names if name in arrays.files), None)
    return None


def _boxes(arrays: Sequence[np.ndarray | None], count: int) -> np.ndarray | None:
    """Return the boxes of `count` elements as fractions `(count, 4)`; None if they are missing or invalid."""
    found = [x for x in arrays if x is not None and x.dtype.kind in "fiu"]
    if len(found) < len(_BOXES) or not found[1].size == found[2].size == 1:
        return None
    return fractions(found[0], count, width=float(found[1].item()), height=float(found[2].item()))
