"""Features in one HDF5 file, and which of them are of which image or video.

Four layouts: a data set `(n, N, D)`, a row an image; one of vectors `(total, D)` of which image i has those from
`pos_boxes[i, 0]` to before `pos_boxes[i, 1]`, as in adaptive bottom-up features; a data set for each id, whose name
is the id, that of its groups included; or a group for each id, in which `features` has them.

A dataset `spatial_features`, of as many elements, has first the left, top, right and bottom of each region as fractions
of the picture's sides; these become the column `boxes`.

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
from typing import Any, Self

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


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Where a file has what.

    Attributes:
        features: the data set of rows, or the group that has a data set or a group for each id.
        rows: whether it is rows.
        ids: the data set of the rows' ids; empty where a file or the data sets' names are the ids.
        member: the data set of features in the group of each id; empty where each id is a data set.
        notes: what was guessed.
    """

    features: str
    rows: bool
    ids: str = ""
    member: str = ""
    notes: tuple[str, ...] = ()


class Hdf5File:
    """An HDF5 file, open for reading, of which no data in other files are read; use it as a context manager.

    Args:
        path: the file.
        what: what is looked for, for the message where it is missing.

    Raises:
        InputError: there is no such file, or it is damaged.
    """

    def __init__(self, path: str | Path, *, what: str) -> None:
        self.path = existing(path, what=what)
        with self.reading():
            self._file = h5py.File(self.path, "r", rdcc_nbytes=_CACHE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Make one error of those that the library raises."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:  # of many types, by where the damage is
            raise InputError(f"{self.path}: cannot be read as HDF5, it may be cut short: {error}") from error

    def names(self) -> list[str]:
        """Return what the file holds at its top."""
        with self.reading():
            return list(self._file)

    def top(self) -> dict[str, h5py.Dataset]:
        """Return the data sets at its top that are in the file, by name."""
        found = {name: self.data(name) for name in self.names() if not self._elsewhere(name)}
        return {name: data for name, data in found.items() if data is not None}

    def below(self, group: str = "") -> Iterator[str]:
        """Yield the paths of all in a group that is no group itself, at any depth."""
        with self.reading():
            here = self._file.get(group) if group else self._file
            if not isinstance(here, h5py.Group):
                return
            for name in here:
                path = "/".join(filter(None, (group.strip("/"), name)))
                hard = isinstance(here.get(name, getlink=True), h5py.HardLink)
                if hard and here.get(name, getclass=True) is h5py.Group:
                    yield from self.below(path)
                else:
                    yield path

    def described(self) -> str:
        """Return the first names at its top, with the shapes of data sets in it, and how many more there are."""
        names, top = self.names(), self.top()
        first = [f"{name} {top[name].shape}" if name in top else name for name in names[:_SHOWN]]
        more = len(names) - len(first)
        return (", ".join(first) or "none") + (f" and {more:,} more" if more else "")

    def _elsewhere(self, name: str) -> bool:
        """Whether a name, or a group above it, is a link, or its data are in other files."""
        with self.reading():
            parts = name.strip("/").split("/")
            above = ["/".join(parts[: end + 1]) for end in range(len(parts))]
            links = (self._file.get(path, getlink=True) for path in above)
            if any(link is not None and not isinstance(link, h5py.HardLink) for link in links):
                return True
            at = self._file.get(name)
            return isinstance(at, h5py.Dataset) and bool(at.external or at.is_virtual)

    def data(self, name: str) -> h5py.Dataset | None:
        """Return a data set; None where there is nothing of this name, or something else.

        Args:
            name: in the file, with `/` between groups.

        Raises:
            InputError: it is in another file.
        """
        if self._elsewhere(name):
            raise InputError(
                f"{self.path}: {name} is a link, or its data are in other files, which are not read"
            )
        with self.reading():
            at = self._file.get(name)
            return at if isinstance(at, h5py.Dataset) and at.shape is not None else None


def is_text(data: h5py.Dataset) -> bool:
    """Whether a data set holds strings."""
    return data.dtype.kind == "S" or h5py.check_string_dtype(data.dtype) is not None


@READERS.register("hdf5")
@dataclass(frozen=True, kw_only=True)
class Hdf5(ArrayReader):
    """Read features from HDF5 files: rows of one data set, or a data set or a group for each id."""

    ids: tuple[Path, ...] = ()
    """Of each file, a .json with {id: row} or a list of ids, or a .npy or .txt of ids; by default they are in it."""
    ids_key: str = ""
    """The data set of the rows' ids; by default image_ids, or the only one of as many different ids."""
    key: str = ""
    """The data set of features, of all or in the group of each id, or the group of all; by default image_features, or
    what there is."""

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
            with Hdf5File(path, what=_WHAT) as file:
                layouts.append(_layout(file, key=self.key, ids=of, ids_key=self.ids_key))
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
        with Hdf5File(path, what=_WHAT) as file, file.reading():
            yield from self._of_rows(file, layout, ids) if layout.rows else self._of_names(file, layout)

    def _of_rows(self, file: Hdf5File, layout: _Layout, ids: Path | None) -> Iterator[Features | Skipped]:
        features, spans = _features(file, layout.features), _positions(file)
        axes = self.axes([Shape(features.shape[1:])] if spans is None else [], where=file.path)
        boxes = _boxes(file, features, channels_first=self.channels_first)
        count = len(features) if spans is None else len(spans)
        names = yield from named_rows(read_id_rows(ids) if ids else _ids(file, layout.ids), count)
        for row, x, box_N4 in Progress(_rows(features, boxes, spans), desc="rows", unit="row", total=count):
            where = f"{file.path.name}, row {row}"
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

    def _of_names(self, file: Hdf5File, layout: _Layout) -> Iterator[Features | Skipped]:
        """Yield the data sets below a group by their names, or their groups' names; most are as wide as all must be."""
        shapes: dict[str, Shape] = {}
        for name in file.below(layout.features):
            if layout.member and name.rpartition("/")[2] != layout.member:
                continue
            try:
                data = file.data(name)
            except InputError as error:
                why = str(error).removeprefix(f"{file.path}: ").replace(name, "it")
                yield Skipped(where=name, why=why)
                continue
            if data is None or data.dtype.kind not in "fiu" or not data.shape:
                yield Skipped(where=name, why="no data set of numbers")
            else:
                shapes[name] = Shape(data.shape)
        axes = self.axes(shapes.values(), where=file.path)
        for name, shape in Progress(shapes.items(), desc="data sets", unit="set", total=len(shapes)):
            where, data = f"{file.path.name}, {name}", file.data(name)
            assert data is not None
            if math.prod(shape.axes) and axes.width(shape) != axes.usual:
                yield Skipped(where=f"{where}, shape {shape.axes}", why=OTHER_WIDTH.format(axes.usual))
                continue
            id = name.removesuffix(f"/{layout.member}" if layout.member else "")
            id = id.removeprefix(f"{layout.features.strip('/')}/")
            yield Features(id=id, x_ND=axes.set(data[()]), where=where)


def _layout(file: Hdf5File, *, key: str, ids: Path | None, ids_key: str) -> _Layout:
    """Return where a file has what, as far as that is said or can be found out.

    Raises:
        InputError: it cannot be found out.
    """
    if key and file.data(key) is None:
        if any(file.below(key)):
            return _Layout(features=key, rows=False, member=_member(file, key))
        if any(name.endswith(f"/{key}") for name in file.below()):
            return _Layout(features="", rows=False, member=key)
        raise InputError(f"{file.path}: has no {key!r}; --key names one of: {file.described()}")
    top = file.top()
    arrays = [
        name
        for name, data in top.items()
        if data.dtype.kind in "fiu" and len(data.shape) > 1 and not _are_ids(data)
    ]
    features, notes = key or (_FEATURES if _FEATURES in file.names() else ""), []
    if not features and (ids or ids_key or (arrays and any(map(_are_ids, top.values())))):
        arrays = [name for name in arrays if name not in (_POSITIONS, _SPATIAL)]
        if len(arrays) != 1:
            raise _without_features(file, _FEATURES)
        features = arrays[0]
        notes.append(_GUESS.format("features", features, "--key"))
    if features:
        found = "" if ids else ids_key or _ids_of(file, top, _POSITIONS if _POSITIONS in top else features)
        notes += [_GUESS.format("ids", found, "--ids-key")] if found not in ("", ids_key, _IDS) else []
        return _Layout(features=features, rows=True, ids=found, notes=tuple(notes))
    if len(arrays) == len(file.names()) == 1:
        raise _without_ids(file)
    member = _member(file, "")
    each = (
        f"a group for each id, with the data set {member!r}"
        if member
        else "a data set for each id, called by it"
    )
    by_name = f"guessed: {each} (--key names one that has a row for each)"
    return _Layout(features="", rows=False, member=member, notes=(by_name,))


def _are_ids(data: h5py.Dataset) -> bool:
    """Whether a data set can be a list of ids: text or whole numbers on one axis."""
    return (is_text(data) or data.dtype.kind in "iu") and len(data.shape) - data.shape[1:].count(1) == 1


def _ids_of(file: Hdf5File, top: Mapping[str, h5py.Dataset], rows: str) -> str:
    """Return the data set of the rows' ids: `image_ids`, or the only one, or the only one called so, of as many ids."""
    if _IDS in file.names():
        return _IDS
    counted = file.data(rows)
    fitting = [name for name, data in top.items() if _are_ids(data) and counted and len(data) == len(counted)]
    fitting = [name for name in fitting if len({*top[name][()].reshape(-1).tolist()}) == len(top[name])]
    called = [name for name in fitting if re.search(r"(^|_)ids?(_|$)", name.lower())]
    texts = [name for name in fitting if is_text(top[name])]
    return next((found[0] for found in (fitting, called, texts) if len(found) == 1), "")


def _member(file: Hdf5File, group: str) -> str:
    """Return what the features of each id are called, where ids are groups: a usual name that most groups have."""
    names = [name.rpartition("/") for name in file.below(group)]
    groups = {above for above, _, _ in names}
    for member in _MEMBERS:
        if 2 * sum(name == member and above != group.strip("/") for above, _, name in names) > len(groups):
            return member
    return ""


def _without_features(file: Hdf5File, key: str) -> InputError:
    return InputError(
        f"{file.path}: no dataset {key!r} of shape (n, N, D); --key names one of: {file.described()}"
    )


def _without_ids(file: Hdf5File) -> InputError:
    return InputError(
        f"{file.path}: it is not said which row is which id; give a file of ids with --ids (.json, .npy or .txt), or "
        f"the name of a data set of them with --ids-key; there are: {file.described()}"
    )


def _rows(
    features: h5py.Dataset, boxes: h5py.Dataset | None, spans: np.ndarray | None
) -> Iterator[tuple[int, np.ndarray | None, np.ndarray | None]]:
    """Yield each row's number, its vectors, None where `spans` leads beyond them, and its boxes, None without any."""

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


def _features(file: Hdf5File, key: str) -> h5py.Dataset:
    data = file.data(key)
    if data is None or len(data.shape) < 2:
        raise _without_features(file, key)
    if data.dtype.kind not in "fiu" or 0 in data.shape:
        raise InputError(f"{file.path}: {key!r} holds {data.dtype} of shape {data.shape}, expected numbers")
    return data


def _positions(file: Hdf5File) -> np.ndarray | None:
    """Return where each image's vectors begin and end, `(n, 2)`; None where each row is an image."""
    if _POSITIONS not in file.names():
        return None
    data = file.data(_POSITIONS)
    if data is None or data.dtype.kind not in "iu" or len(data.shape) != 2 or data.shape[1] != 2:
        raise InputError(
            f"{file.path}: {_POSITIONS} is {_found(data)}, expected whole numbers of shape (n, 2): where the vectors "
            "of each image begin and end"
        )
    return data[()]


def _boxes(file: Hdf5File, features: h5py.Dataset, *, channels_first: bool) -> h5py.Dataset | None:
    """Return the boxes of all elements; None where there are none, with a note where the data set is something else."""
    if _SPATIAL not in file.names():
        return None
    data = file.data(_SPATIAL)
    if (
        data is not None
        and data.dtype.kind == "f"
        and data.shape[:-1] == features.shape[:-1]
        and data.shape[-1] >= 4
        and not (channels_first and len(features.shape) > 3)
    ):
        return data
    print(
        f"note: {_SPATIAL} is {_found(data)}, which is no box of each element; it is left out",
        file=sys.stderr,
    )
    return None


def _found(data: h5py.Dataset | None) -> str:
    return "something else" if data is None else f"{data.dtype} of shape {data.shape}"


def _ids(file: Hdf5File, key: str) -> list[tuple[str, Any]]:
    """Return pairs of id and row."""
    data = file.data(key) if key else None
    if data is None:
        raise _without_ids(file)
    if not is_text(data) and data.dtype.kind not in "iu":
        raise InputError(
            f"{file.path}: {key!r} holds {data.dtype}, expected whole numbers or text; give --ids or --ids-key"
        )
    return [(as_text(id), row) for row, id in enumerate(data[()].reshape(-1).tolist())]
