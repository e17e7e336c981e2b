"""Features in one HDF5 file: a dataset `image_features`, and which row is which image.

Two layouts: `(n, N, D)`, a row an image; or, where there is a dataset `pos_boxes` `(n, 2)`, vectors
`(total, D)` of which image i has those from `pos_boxes[i, 0]` to before `pos_boxes[i, 1]`, as in adaptive
bottom-up features.

A dataset `spatial_features`, of as many elements, has first the left, top, right and bottom of each region as fractions
of the picture's sides; these become the column `boxes`.

Source: the file layout of the public bottom-up-attention VQA baseline by Hengyuan Hu and others.

Only data in the file itself are read, and no more than it can hold. HDF5 knows links to other files, data sets
that other files store, and data sets whose chunks were never written: a file of a few kilobytes can show another one's
numbers, or rows without end. The library raises many kinds of errors on a damaged file; here they are one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h5py
import numpy as np
from tqdm import tqdm

from polypool.infra.errors import InputError
from polypool.infra.files import existing, identity
from polypool.infra.limits import LARGEST_BLOCK, LARGEST_SET, UNPACKS_TOO_FAR, unpacks_too_far
from polypool.infra.registry import READERS
from polypool.infra.store.findings import Skipped
from polypool.tasks.datasets import FeatureReader, Features, Reading
from polypool.tasks.datasets.annotation_files import as_text, read_id_rows
from polypool.tasks.datasets.features import as_set

_BLOCK = 32 << 20  # bytes read at a time
_POSITIONS, _IDS, _SPATIAL = "pos_boxes", "image_ids", "spatial_features"
_CACHE = 128 << 20  # bytes of decompressed chunks that HDF5 keeps
_SMALL = 1 << 16  # bytes that any data set may claim
_MOST_PACKED = 1100  # times smaller than what it unpacks to: deflate reaches 1,032
_CHECKSUM = 4  # bytes; HDF5 reads beyond a chunk that is shorter than its own


@READERS.register("hdf5")
@dataclass(frozen=True, kw_only=True)
class Hdf5(FeatureReader):
    """Read features from an HDF5 file, into a store."""

    file: Path
    """The HDF5 file."""
    ids: Path | None = None
    """.json with {id: row} or a list of ids, .npy or .txt of ids; by default the dataset image_ids."""
    key: str = "image_features"
    """The dataset of features."""
    channels_first: bool = False
    """Rows are (D, H, W)."""

    def read(self) -> Reading:
        """Return the sets in the order of the file."""
        files = identity(*(path for path in (self.file, self.ids) if path))
        source = {"files": files, "key": self.key, "channels_first": self.channels_first}
        return Reading(rows=self._sets(), source=source)

    def _sets(self) -> Iterator[Features | Skipped]:
        with Hdf5File(self.file, what="an HDF5 file of features") as file:
            features, spans = _features(file, self.key), _positions(file)
            boxes = _boxes(file, features, channels_first=self.channels_first)
            count = len(features) if spans is None else len(spans)
            names: dict[int, str] = {}
            for id, row in _ids(self.ids, file):
                if not isinstance(row, int) or not 0 <= row < count:
                    yield Skipped(where=f"id {id}", why=f"an id whose row is not one of 0 to {count - 1}")
                elif row in names:
                    yield Skipped(where=f"id {id}", why="an id whose row has another id already")
                else:
                    names[row] = id
            for row, x, box_N4 in tqdm(_rows(features, boxes, spans), desc="rows", unit="row", total=count):
                where = f"{file.path.name}, row {row}"
                if row not in names:
                    yield Skipped(where=where, why="a row that has no id")
                    continue
                id, where = names[row], f"{where} (id {names[row]})"
                if x is None:
                    yield Skipped(where=where, why=f"{_POSITIONS} beyond the vectors, or empty")
                    continue
                x_ND = as_set(x, channels_first=self.channels_first)
                if box_N4 is None:
                    yield Features(id=id, x_ND=x_ND, where=where)
                else:
                    finite = box_N4.astype(np.float32) if np.isfinite(box_N4).all() else None
                    yield Features.with_boxes(id, x_ND, finite, where=where)


def _rows(
    features: Hdf5Data, boxes: Hdf5Data | None, spans: np.ndarray | None
) -> Iterator[tuple[int, np.ndarray | None, np.ndarray | None]]:
    """Yield each row's number, its vectors, None where `spans` leads beyond them, and its boxes, None without any."""

    def between(start: int, stop: int) -> tuple[np.ndarray, np.ndarray | None]:
        return features.rows(start, stop), None if boxes is None else boxes.rows(start, stop)[..., :4]

    if spans is None:
        step = max(1, _BLOCK // max(1, features.row_bytes))
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


def _features(file: Hdf5File, key: str) -> Hdf5Data:
    data = file.data(key)
    if data is None or len(data.shape) < 2:
        raise InputError(
            f"{file.path}: no dataset {key!r} of shape (n, N, D); --key names one of: {file.described()}"
        )
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
    return data.whole()


def _boxes(file: Hdf5File, features: Hdf5Data, *, channels_first: bool) -> Hdf5Data | None:
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


def _found(data: Hdf5Data | None) -> str:
    return "something else" if data is None else f"{data.dtype} of shape {data.shape}"


def _ids(ids: Path | None, file: Hdf5File) -> list[tuple[str, Any]]:
    """Return pairs of id and row."""
    if ids is not None:
        return read_id_rows(ids)
    data = file.data(_IDS)
    if data is None:
        raise InputError(
            f"{file.path}: no dataset {_IDS!r}; give a file of ids with --ids (.json, .npy or .txt)"
        )
    if data.dtype.kind not in "iuS" and h5py.check_string_dtype(data.dtype) is None:
        raise InputError(
            f"{file.path}: {_IDS!r} holds {data.dtype}, expected whole numbers or text; give --ids"
        )
    return [(as_text(id), row) for row, id in enumerate(data.whole().reshape(-1).tolist())]


class Unreadable(InputError):
    """A file or a data set that cannot be read, or is not to be."""


class Hdf5File:
    """An HDF5 file, open for reading; use it as a context manager.

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.reading():
            self._file.close()

    def names(self) -> list[str]:
        """Return what the file holds at its top."""
        with self.reading():
            return [_text(name) for name in self._file]

    def described(self) -> str:
        """Return the names at its top with the shapes of those that are data sets in it."""
        with self.reading():
            return ", ".join(f"{_text(name)} {self._shape(name)}".rstrip() for name in self._file) or "none"

    def _shape(self, name: str | bytes) -> str:
        here = isinstance(self._file.get(name, getlink=True), h5py.HardLink)
        return str(getattr(self._file[name], "shape", "")) if here else ""

    def data(self, name: str) -> Hdf5Data | None:
        """Return a data set; None where there is nothing of this name, or something else.

        Args:
            name: in the file, with `/` between groups.

        Raises:
            Unreadable: it is in another file, is damaged, or claims far more than the file holds.
        """
        with self.reading():
            at: h5py.Group = self._file
            for part in filter(None, name.encode("utf-8", "surrogateescape").split(b"/")):
                if not isinstance(at, h5py.Group) or part not in at:
                    return None
                if not isinstance(at.get(part, getlink=True), h5py.HardLink):
                    raise Unreadable(f"{self.path}: {name} is a link to data elsewhere; it is not followed")
                at = at[part]
            if not isinstance(at, h5py.Dataset) or at.shape is None:
                return None
            if at.external or at.is_virtual:
                raise Unreadable(f"{self.path}: the data of {name} are in other files, which are not read")
            claimed, held = at.size * at.dtype.itemsize, at.id.get_storage_size()
            if claimed > max(_SMALL, _MOST_PACKED * held):
                raise Unreadable(
                    f"{self.path}: {name} {at.shape} claims {claimed:,} bytes, and the file holds {held:,} of it"
                )
            if unpacks_too_far(claimed, packed=held):
                raise Unreadable(f"{self.path}: {name} {UNPACKS_TOO_FAR}")
            chunk = math.prod(at.chunks or ()) * at.dtype.itemsize
            if chunk > LARGEST_BLOCK:
                raise Unreadable(
                    f"{self.path}: {name} has chunks of {chunk:,} bytes, at most {LARGEST_BLOCK:,} are unpacked at once"
                )
            if at.fletcher32 and at.id.chunk_iter(lambda chunk: True if chunk.size < _CHECKSUM else None):
                raise Unreadable(
                    f"{self.path}: {name} has chunks too short for their checksum, it is damaged"
                )
            return Hdf5Data(self, at, name)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Make one error of those that the library raises."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:  # of many types, by where the damage is
            raise Unreadable(f"{self.path}: cannot be read as HDF5, it may be cut short: {error}") from error


def _text(name: str | bytes) -> str:
    """Return a name as text; one that is no UTF-8 comes as bytes."""
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name


class Hdf5Data:
    """A data set with at least one axis or none, `shape` and `dtype` as in numpy."""

    def __init__(self, file: Hdf5File, data: h5py.Dataset, name: str) -> None:
        self.name, self._file, self._data = name, file, data
        self.shape: tuple[int, ...] = data.shape
        self.dtype: np.dtype = data.dtype

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, unpacked."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def whole(self) -> np.ndarray:
        """Return all of it; `Unreadable` where it is damaged, or too large for a list."""
        if self.row_bytes * math.prod(self.shape[:1]) > LARGEST_BLOCK:
            raise Unreadable(f"{self._file.path}: {self.name} has over {LARGEST_BLOCK:,} bytes")
        with self._file.reading():
            return self._data[()]

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return some rows.

        Raises:
            Unreadable: they are damaged, or too large to be held.
        """
        size = (min(stop, len(self)) - start) * self.row_bytes
        if size > LARGEST_SET:
            raise Unreadable(
                f"{self._file.path}: rows of {self.name} have {size:,} bytes: too large for one set"
            )
        with self._file.reading():
            return self._data[start:stop]
