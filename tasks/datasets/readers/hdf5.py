"""Features in HDF5 files, in four layouts.

- A data set `(n, N, D)`, a row for each image or video.
- A data set of vectors `(total, D)`: image i has the rows from `pos_boxes[i, 0]` up to, but not including,
  `pos_boxes[i, 1]`, as in adaptive bottom-up features.
- A data set for each id; the id is its path in the file.
- A group for each id, with the features in a data set such as `features`.

The first four columns of a data set `spatial_features` are the left, top, right and bottom of each region as fractions
of the picture's sides; they become the column `boxes`.

Source: the file layout of the public bottom-up-attention VQA baseline by Hengyuan Hu and others.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from polypool.infra.errors import InputError
from polypool.infra.files import existing, identity
from polypool.infra.process.progress import Progress
from polypool.infra.registry import READERS
from polypool.infra.store.findings import Skipped
from polypool.tasks.datasets import Features, Reading
from polypool.tasks.datasets.annotations import as_text, read_id_rows
from polypool.tasks.datasets.features import (
    OTHER_WIDTH,
    PATTERNS,
    ArrayReader,
    Shape,
    files_of,
    named_rows,
)

_BLOCK = 32 << 20  # bytes read at a time
_CACHE = 128 << 20  # bytes of decompressed chunks that HDF5 keeps
_SHOWN = 5  # names that a message lists
_FEATURES, _IDS, _POSITIONS, _SPATIAL = "image_features", "image_ids", "pos_boxes", "spatial_features"
_MEMBERS = ("features", "feature", "feats", "feat", "x")
_WHAT = "an HDF5 file of features"
_GUESS = "guessed: {}: the data set {!r} ({} says another)"

Data = Mapping[str, h5py.Dataset]
"""The data sets of a file by their paths, in the order of the paths."""


@contextmanager
def data_sets(path: str | Path, *, what: str) -> Iterator[Data]:
    """Open an HDF5 file, and yield its own data sets, without links and data in other files.

    Args:
        path: the file.
        what: expected content, for messages.

    Raises:
        InputError: a missing file, or a damaged one, possibly later while data are read.
    """
    path, found = existing(path, what=what), dict[str, h5py.Dataset]()

    def keep(name: str, at: Any) -> None:  # not called for links
        if isinstance(at, h5py.Dataset) and not (at.shape is None or at.external or at.is_virtual):
            found[name] = at

    try:
        with h5py.File(path, "r", rdcc_nbytes=_CACHE) as file:
            file.visititems(keep)
            yield found
    except InputError:
        raise
    except Exception as error:  # h5py raises many types, depending on the damage
        raise InputError(f"{path}: cannot be read as HDF5, it may be cut short: {error}") from error


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """The layout of a file.

    Attributes:
        features: the data set of rows, or the path of the group with a data set or a group for each id.
        rows: whether `features` is a data set of rows.
        ids: the data set of the rows' ids; empty if the ids are in another file, or are names of data sets.
        member: the data set of features in the group of each id; empty if each id is a data set.
        notes: on guessed names.
    """

    features: str
    rows: bool
    ids: str = ""
    member: str = ""
    notes: tuple[str, ...] = ()


@READERS.register("hdf5")
@dataclass(frozen=True, kw_only=True)
class Hdf5(ArrayReader):
    """Read features from HDF5 files: rows of one data set, or a data set or a group for each id."""

    ids: tuple[Path, ...] = ()
    """Of each file, a .json with {id: row} or a list of ids, or a .npy or .txt of ids; by default in the file."""
    ids_key: str = ""
    """The data set of the rows' ids; by default image_ids, or the only one of as many different ids."""
    key: str = ""
    """The data set of features, of all or in the group of each id, or the group of all; by default image_features, or
    guessed."""

    def read(self) -> Reading:
        """Return the sets in the order of the files."""
        if self.ids and self.ids_key:
            raise InputError("--ids names a file of ids and --ids-key a data set of them; give one")
        paths = files_of(self.file, self.dir, pattern=PATTERNS["hdf5"], what=_WHAT)
        if self.ids and len(self.ids) != len(paths):
            raise InputError(
                f"--ids names {len(self.ids):,} files, expected one for each of {len(paths):,} HDF5 files"
            )
        ids = self.ids or (None,) * len(paths)
        layouts = []
        for path, of in zip(paths, ids, strict=True):
            with data_sets(path, what=_WHAT) as data:
                layouts.append(_layout(path, data, key=self.key, ids=of, ids_key=self.ids_key))
        source = {
            "files": identity(*paths, *self.ids),
            "layouts": sorted({(layout.features, layout.member, layout.ids) for layout in layouts}),
            "channels_first": self.channels_first,
            "channels_last": self.channels_last,
        }
        notes = dict.fromkeys(note for layout in layouts for note in layout.notes)
        sets = (self._sets(*each) for each in zip(paths, ids, layouts, strict=True))
        return Reading(rows=chain.from_iterable(sets), source=source, notes=tuple(notes))

    def _sets(self, path: Path, ids: Path | None, layout: _Layout) -> Iterator[Features | Skipped]:
        with data_sets(path, what=_WHAT) as data:
            if layout.rows:
                yield from self._of_rows(path, data, layout, ids)
            else:
                yield from self._of_names(path, data, layout)

    def _of_rows(
        self, path: Path, data: Data, layout: _Layout, ids: Path | None
    ) -> Iterator[Features | Skipped]:
        features, spans = data[layout.features], _positions(path, data)
        if features.dtype.kind not in "fiu" or features.ndim < 2 or not features.size:
            raise InputError(f"{path}: {layout.features!r} is {_found(features)}, expected numbers (n, N, D)")
        axes = self.axes([Shape(features.shape[1:])] if spans is None else [], where=path)
        boxes = _boxes(data, features, channels_first=self.channels_first)
        count = len(features) if spans is None else len(spans)
        pairs = read_id_rows(ids) if ids else _ids(path, data, layout.ids)
        names = yield from named_rows(pairs, count)
        for row, x, box_N4 in Progress(_rows(features, boxes, spans), desc="rows", unit="row", total=count):
            where = f"{path.name}, row {row}"
            if row not in names:
                yield Skipped(where=where, why="a row that has no id")
                continue
            id, where = names[row], f"{where} (id {names[row]})"
            if x is None:
                yield Skipped(where=where, why=f"{_POSITIONS} beyond the vectors, or empty")
                continue
            x_ND = x if spans is not None else axes.set(x)
            if box_N4 is None:
                yield Features(id=id, x_ND=x_ND, where=where)
            else:
                finite = box_N4.astype(np.float32) if np.isfinite(box_N4).all() else None
                yield Features.with_boxes(id, x_ND, finite, where=where)

    def _of_names(self, path: Path, data: Data, layout: _Layout) -> Iterator[Features | Skipped]:
        """Yield the data sets below a group under their names, or their groups' names, if they have the usual width."""
        ending = f"/{layout.member}" if layout.member else ""
        chosen = {name: each for name, each in data.items() if name.startswith(layout.features)}
        chosen = {name: each for name, each in chosen.items() if f"/{name}".endswith(ending)}
        shapes = {name: Shape(each.shape) for name, each in chosen.items() if _of_numbers(each)}
        for name in (name for name in chosen if name not in shapes):
            yield Skipped(where=name, why="no data set of numbers")
        axes = self.axes(shapes.values(), where=path)
        for name, shape in Progress(shapes.items(), desc="data sets", unit="set", total=len(shapes)):
            where = f"{path.name}, {name}"
            if math.prod(shape.axes) and axes.width(shape) != axes.usual:
                yield Skipped(where=f"{where}, shape {shape.axes}", why=OTHER_WIDTH.format(axes.usual))
                continue
            id = name.removesuffix(ending).removeprefix(layout.features)
            yield Features(id=id, x_ND=axes.set(data[name][()]), where=where)


def _layout(path: Path, data: Data, *, key: str, ids: Path | None, ids_key: str) -> _Layout:
    """Return the layout of a file, from the options or guessed.

    Raises:
        InputError: the file does not have `key`, or the layout cannot be guessed.
    """
    if key and key not in data:
        group = f"{key.strip('/')}/"
        if any(name.startswith(group) for name in data):
            return _Layout(features=group, rows=False, member=_member(data, group))
        if any(name.endswith(f"/{key}") for name in data):
            return _Layout(features="", rows=False, member=key)
        raise InputError(f"{path}: has no {key!r}; --key names one of: {_described(data)}")
    top = {name: each for name, each in data.items() if "/" not in name}
    known = (_POSITIONS, _SPATIAL)
    arrays = [
        name
        for name, each in top.items()
        if _of_numbers(each) and each.ndim > 1 and not _are_ids(each) and name not in known
    ]
    features, notes = key or (_FEATURES if _FEATURES in top else ""), []
    if not features and (ids or ids_key or (arrays and any(map(_are_ids, top.values())))):
        if len(arrays) != 1:
            raise InputError(
                f"{path}: no dataset {_FEATURES!r} of shape (n, N, D); --key names one of: {_described(data)}"
            )
        (features,) = arrays
        notes.append(_GUESS.format("features", features, "--key"))
    if features:
        found = (
            "" if ids else ids_key or _ids_of(top, len(data[_POSITIONS if _POSITIONS in top else features]))
        )
        notes += [_GUESS.format("ids", found, "--ids-key")] if found not in ("", ids_key, _IDS) else []
        return _Layout(features=features, rows=True, ids=found, notes=tuple(notes))
    if len(data) < 2:
        raise _without_ids(path, data)
    member = _member(data, "")
    each = f"a group for each id, with the data set {member!r}" if member else "a data set for each id"
    by_name = f"guessed: {each} (--key names one that has a row for each)"
    return _Layout(features="", rows=False, member=member, notes=(by_name,))


def _of_numbers(data: h5py.Dataset) -> bool:
    return data.dtype.kind in "fiu" and data.ndim > 0


def _is_text(data: h5py.Dataset) -> bool:
    return data.dtype.kind == "S" or h5py.check_string_dtype(data.dtype) is not None


def _are_ids(data: h5py.Dataset) -> bool:
    """Whether a data set can be a list of ids: text or whole numbers on one axis."""
    return (_is_text(data) or data.dtype.kind in "iu") and data.ndim - data.shape[1:].count(1) == 1


def _ids_of(top: Data, count: int) -> str:
    """Return the data set of the rows' ids: `image_ids`, or the only one with `count` different ids; empty if unclear.

    Of several such data sets, it is the only one named as ids, or else the only one of text.
    """
    if _IDS in top:
        return _IDS
    fitting = [name for name, data in top.items() if _are_ids(data) and len(data) == count]
    fitting = [name for name in fitting if len({*top[name][()].reshape(-1).tolist()}) == count]
    called = [name for name in fitting if re.search(r"(^|_)ids?(_|$)", name.lower())]
    texts = [name for name in fitting if _is_text(top[name])]
    return next((found[0] for found in (fitting, called, texts) if len(found) == 1), "")


def _member(data: Data, group: str) -> str:
    """Return the name in `_MEMBERS` that most groups have; empty if no name does, as when ids are data sets."""
    names = [name.rpartition("/") for name in data if name.startswith(group)]
    groups = {above for above, _, _ in names}
    for member in _MEMBERS:
        if 2 * sum(name == member and above != group.strip("/") for above, _, name in names) > len(groups):
            return member
    return ""


def _described(data: Data) -> str:
    """Return the first names at the top, with the shapes of data sets, and the number of further ones."""
    top = [*dict.fromkeys(name.partition("/")[0] for name in data)]
    first = ", ".join(f"{name} {data[name].shape}" if name in data else name for name in top[:_SHOWN])
    more = f" and {len(top) - _SHOWN:,} more" if len(top) > _SHOWN else ""
    return (first or "none") + more + " (no links, and no data in other files)"


def _without_ids(path: Path, data: Data) -> InputError:
    return InputError(
        f"{path}: no ids of the rows; give a file of ids with --ids (.json, .npy or .txt), or the name of a data set "
        f"of ids with --ids-key; the file has: {_described(data)}"
    )


def _rows(
    features: h5py.Dataset, boxes: h5py.Dataset | None, spans: np.ndarray | None
) -> Iterator[tuple[int, np.ndarray | None, np.ndarray | None]]:
    """Yield the number of each row, its vectors (None for an invalid span), and its boxes (None without any)."""

    def between(start: int, stop: int) -> tuple[np.ndarray, np.ndarray | None]:
        return features[start:stop], None if boxes is None else boxes[start:stop][..., :4]

    if spans is None:
        step = max(1, _BLOCK // max(1, math.prod(features.shape[1:]) * features.dtype.itemsize))
        for start in range(0, len(features), step):
            x, box = between(start, start + step)
            for number, of_row in enumerate(x):
                yield start + number, of_row, None if box is None else box[number]
        return
    for row in np.argsort(spans[:, 0], kind="stable").tolist():
        start, stop = spans[row].tolist()
        if 0 <= start < stop <= len(features):
            yield row, *between(start, stop)
        else:
            yield row, None, None


def _positions(path: Path, data: Data) -> np.ndarray | None:
    """Return the start and end (exclusive) of each image's vectors, `(n, 2)`; None if each row is an image."""
    if (spans := data.get(_POSITIONS)) is None:
        return None
    if spans.dtype.kind not in "iu" or spans.shape[1:] != (2,):
        raise InputError(
            f"{path}: {_POSITIONS} is {_found(spans)}, expected whole numbers of shape (n, 2): where the vectors "
            "of each image begin and end"
        )
    return spans[()]


def _boxes(data: Data, features: h5py.Dataset, *, channels_first: bool) -> h5py.Dataset | None:
    """Return the boxes of all elements, or None; print a note on a `spatial_features` of another form."""
    if (boxes := data.get(_SPATIAL)) is None:
        return None
    fits = boxes.shape[:-1] == features.shape[:-1] and boxes.shape[-1] >= 4 and boxes.dtype.kind == "f"
    if fits and not (channels_first and features.ndim > 3):
        return boxes
    note = f"note: {_SPATIAL} is {_found(boxes)}, which is no box of each element; it is left out"
    print(note, file=sys.stderr)
    return None


def _found(data: h5py.Dataset) -> str:
    return f"{data.dtype} of shape {data.shape}"


def _ids(path: Path, data: Data, key: str) -> list[tuple[str, Any]]:
    """Return pairs of id and row."""
    if key not in data:
        raise _without_ids(path, data)
    if not _is_text(data[key]) and data[key].dtype.kind not in "iu":
        raise InputError(
            f"{path}: {key!r} holds {data[key].dtype}, expected whole numbers or text; give --ids or --ids-key"
        )
    return [(as_text(id), row) for row, id in enumerate(data[key][()].reshape(-1).tolist())]
