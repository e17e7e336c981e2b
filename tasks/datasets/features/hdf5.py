"""Features in one HDF5 file, and which of them are of which image or video.

Three layouts: a data set `(n, N, D)`, a row an image; one of vectors `(total, D)` of which image i has those from
`pos_boxes[i, 0]` to before `pos_boxes[i, 1]`, as in adaptive bottom-up features; or a data set for each id, whose name
is the id, that of its groups included.

A dataset `spatial_features`, of as many elements, has first the left, top, right and bottom of each region as fractions
of the picture's sides; these become the column `boxes`.

Source: the file layout of the public bottom-up-attention VQA baseline by Hengyuan Hu and others.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polypool.infra.errors import InputError
from polypool.infra.files import identity
from polypool.infra.process.progress import Progress
from polypool.infra.registry import READERS
from polypool.infra.store.findings import Skipped
from polypool.tasks.datasets import FeatureReader, Features, Reading
from polypool.tasks.datasets.annotation_files import as_text, read_id_rows
from polypool.tasks.datasets.features import OTHER_WIDTH, as_set, usual_width, width_of
from polypool.tasks.datasets.features.hdf5_file import Hdf5Data, Hdf5File, Unreadable

_BLOCK = 32 << 20  # bytes read at a time
_FEATURES, _IDS, _POSITIONS, _SPATIAL = "image_features", "image_ids", "pos_boxes", "spatial_features"
_GUESS = "guessed: {}: the data set {!r} ({} says another)"


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Where a file has what.

    Attributes:
        features: the data set of rows, or the group that has a data set for each id.
        rows: whether it is rows.
        ids: the data set of the rows' ids; empty where a file or the data sets' names are the ids.
        notes: what was guessed.
    """

    features: str
    rows: bool
    ids: str = ""
    notes: tuple[str, ...] = ()


@READERS.register("hdf5")
@dataclass(frozen=True, kw_only=True)
class Hdf5(FeatureReader):
    """Read features from an HDF5 file, into a store: rows of one data set, or a data set for each id."""

    file: Path
    """The HDF5 file."""
    ids: Path | None = None
    """.json with {id: row} or a list of ids, .npy or .txt of ids; by default they are in the HDF5 file."""
    ids_key: str = ""
    """The data set of the rows' ids; by default image_ids, or the only one of text."""
    key: str = ""
    """The data set of features, or a group with one for each id; by default image_features, or what there is."""
    channels_first: bool = False
    """Rows are (D, H, W)."""

    def read(self) -> Reading:
        """Return the sets in the order of the file."""
        if self.ids and self.ids_key:
            raise InputError("--ids names a file of ids and --ids-key a data set of them; give one")
        with Hdf5File(self.file, what="an HDF5 file of features") as file:
            layout = _layout(file, key=self.key, ids=self.ids, ids_key=self.ids_key)
        source = {
            "files": identity(*(path for path in (self.file, self.ids) if path)),
            "key": layout.features,
            "ids_key": layout.ids,
            "channels_first": self.channels_first,
        }
        return Reading(rows=self._sets(layout), source=source, notes=layout.notes)

    def _sets(self, layout: _Layout) -> Iterator[Features | Skipped]:
        with Hdf5File(self.file, what="an HDF5 file of features") as file:
            if layout.rows:
                yield from self._of_rows(file, layout)
            else:
                yield from _of_names(file, layout.features, channels_first=self.channels_first)

    def _of_rows(self, file: Hdf5File, layout: _Layout) -> Iterator[Features | Skipped]:
        features, spans = _features(file, layout.features), _positions(file)
        boxes = _boxes(file, features, channels_first=self.channels_first)
        count = len(features) if spans is None else len(spans)
        names: dict[int, str] = {}
        for id, row in read_id_rows(self.ids) if self.ids else _ids(file, layout.ids):
            if not isinstance(row, int) or not 0 <= row < count:
                yield Skipped(where=f"id {id}", why=f"an id whose row is not one of 0 to {count - 1}")
            elif row in names:
                yield Skipped(where=f"id {id}", why="an id whose row has another id already")
            else:
                names[row] = id
        for row, x, box_N4 in Progress(_rows(features, boxes, spans), desc="rows", unit="row", total=count):
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


def _layout(file: Hdf5File, *, key: str, ids: Path | None, ids_key: str) -> _Layout:
    """Return where a file has what, as far as that is said or can be found out.

    Raises:
        InputError: it cannot be found out.
    """
    if key and file.data(key) is None:
        if not any(file.below(key)):
            raise InputError(f"{file.path}: has no {key!r}; --key names one of: {file.described()}")
        return _Layout(features=key, rows=False)
    names, top = file.names(), file.top()
    texts = [name for name, data in top.items() if data.is_text and len(data.shape) == 1]
    usual = _IDS if _IDS in names else texts[0] if len(texts) == 1 else ""
    found = "" if ids else ids_key or usual
    notes = [_GUESS.format("ids", found, "--ids-key")] if found not in ("", ids_key, _IDS) else []
    if key or _FEATURES in names:
        return _Layout(features=key or _FEATURES, rows=True, ids=found, notes=tuple(notes))
    arrays = [name for name, data in top.items() if data.is_numbers and len(data.shape) > 1]
    if ids or found:
        arrays = [name for name in arrays if name not in (_POSITIONS, _SPATIAL)]
        if len(arrays) != 1:
            raise _without_features(file, _FEATURES)
        notes.append(_GUESS.format("features", arrays[0], "--key"))
        return _Layout(features=arrays[0], rows=True, ids=found, notes=tuple(notes))
    if len(arrays) == len(names) == 1:
        raise _without_ids(file)
    by_name = "guessed: a data set for each id, called by it (--key names one that has a row for each)"
    return _Layout(features="", rows=False, notes=(by_name,))


def _without_features(file: Hdf5File, key: str) -> InputError:
    return InputError(
        f"{file.path}: no dataset {key!r} of shape (n, N, D); --key names one of: {file.described()}"
    )


def _without_ids(file: Hdf5File) -> InputError:
    return InputError(
        f"{file.path}: it is not said which row is which id; give a file of ids with --ids (.json, .npy or .txt), or "
        f"the name of a data set of them with --ids-key; there are: {file.described()}"
    )


def _of_names(file: Hdf5File, group: str, *, channels_first: bool) -> Iterator[Features | Skipped]:
    """Yield the data sets below a group, whose names are ids; most are as wide as all have to be."""
    widths: dict[str, int | None] = {}
    for name in file.below(group):
        try:
            data = file.data(name)
        except Unreadable as error:
            yield Skipped(where=name, why=str(error).removeprefix(f"{file.path}: ").replace(name, "it"))
            continue
        if data is None or not data.is_numbers or not data.shape:
            yield Skipped(where=name, why="no data set of numbers")
        else:
            widths[name] = width_of(data.shape, channels_first=channels_first)
    width = usual_width(widths.values())
    for name in Progress(widths, desc="data sets", unit="set"):
        where, data = f"{file.path.name}, {name}", file.data(name)
        assert data is not None
        if widths[name] not in (None, width):
            why = OTHER_WIDTH.format(width)
            yield Skipped(where=f"{where}, shape {data.shape}", why=why)
            continue
        x_ND = as_set(data.rows(0, len(data)), channels_first=channels_first)
        yield Features(id=name.removeprefix(f"{group.strip('/')}/"), x_ND=x_ND, where=where)


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


def _ids(file: Hdf5File, key: str) -> list[tuple[str, Any]]:
    """Return pairs of id and row."""
    data = file.data(key) if key else None
    if data is None:
        raise _without_ids(file)
    if not data.is_text and data.dtype.kind not in "iu":
        raise InputError(
            f"{file.path}: {key!r} holds {data.dtype}, expected whole numbers or text; give --ids or --ids-key"
        )
    return [(as_text(id), row) for row, id in enumerate(data.whole().reshape(-1).tolist())]
