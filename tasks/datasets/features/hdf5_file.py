"""HDF5 files of others, read with care.

Only data in the file itself are read, and no more than it can hold. HDF5 knows links to other files, data sets
that other files store, and data sets whose chunks were never written: a file of a few kilobytes can show another one's
numbers, or rows without end. The library raises many kinds of errors on a damaged file; here they are one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self

import h5py
import numpy as np

from polypool.infra.errors import InputError
from polypool.infra.files import existing
from polypool.infra.limits import LARGEST_BLOCK, LARGEST_SET, UNPACKS_TOO_FAR, unpacks_too_far

_CACHE = 128 << 20  # bytes of decompressed chunks that HDF5 keeps
_SMALL = 1 << 16  # bytes that any data set may claim
_MOST_PACKED = 1100  # times smaller than what it unpacks to: deflate reaches 1,032
_CHECKSUM = 4  # bytes; HDF5 reads beyond a chunk that is shorter than its own
_SHOWN = 5  # names that a message lists


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

    def top(self) -> dict[str, Hdf5Data]:
        """Return the data sets at its top that can be read, by name."""
        found = {}
        for name in self.names():
            with suppress(Unreadable):
                if (data := self.data(name)) is not None:
                    found[name] = data
        return found

    def below(self, group: str = "") -> Iterator[str]:
        """Yield the paths of all in a group that is no group itself, at any depth; a group of several names once."""
        seen: set[h5py.h5g.GroupID] = set()
        with self.reading():
            waiting = [group.strip("/")]
            while waiting:
                at = waiting.pop()
                here = self._file.get(at.encode("utf-8", "surrogateescape")) if at else self._file
                if not isinstance(here, h5py.Group) or here.id in seen:
                    continue
                seen.add(here.id)
                within = []
                for name in here:
                    path = "/".join(filter(None, (at, _text(name))))
                    hard = isinstance(here.get(name, getlink=True), h5py.HardLink)
                    if hard and here.get(name, getclass=True) is h5py.Group:
                        within.append(path)
                    else:
                        yield path
                waiting += reversed(within)

    def described(self) -> str:
        """Return the first names at its top, with the shapes of data sets in it, and how many more there are."""
        with self.reading():
            first = [f"{_text(name)} {self._shape(name)}".rstrip() for name in islice(self._file, _SHOWN)]
            more = len(self._file) - len(first)
        return (", ".join(first) or "none") + (f" and {more:,} more" if more else "")

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
    def is_text(self) -> bool:
        """Whether it holds strings."""
        return self.dtype.kind == "S" or h5py.check_string_dtype(self.dtype) is not None

    @property
    def is_numbers(self) -> bool:
        """Whether it holds numbers."""
        return self.dtype.kind in "fiu"

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
